"""The report of a job: a JSON file next to the output, and a short summary for the user."""

from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from quantize.files.output_file import write_atomic
from quantize.files.provenance import Provenance
from quantize.ggml_types import FLOAT_TYPES, TIME_UNIT, GgmlType
from quantize.job.gate import lines as gate_lines
from quantize.job.gate import receipt
from quantize.job.request import QuantizeReport
from quantize.types import FileReport, Interval, QuantPlan, Rounding, Tier

_MIB = 1024 * 1024


def write_report(path: Path, report: QuantizeReport) -> None:
    """Write the report as indented JSON, completely or not at all. Raises: OSError."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n", "report")


def summary(report: QuantizeReport) -> list[str]:
    """Summary lines for the user."""
    plan = report.plan
    counts: dict[str, int] = {}
    for tensor in plan.tensors:
        if tensor.qtype != "F32":
            counts[tensor.qtype] = counts.get(tensor.qtype, 0) + 1
    mix = ", ".join(f"{count} {qtype}" for qtype, count in sorted(counts.items(), key=lambda c: -c[1]))
    size = report.file_bytes if report.file_bytes is not None else plan.file_bytes
    lines = [f"{size:,} bytes ({size / _MIB:.1f} MiB), {plan.bpw:.2f} bits per weight: {mix}"]
    if plan.kv is not None:
        kv = plan.kv
        how = "" if kv.type_k == kv.type_v else " (engine arguments cache_type_k and cache_type_v)"
        lines.append(f"KV cache {kv.type_k}/{kv.type_v}{how}: {kv.num_bytes:,} bytes at {plan.goal.n_ctx} tokens")
    for what, by_context in report.kv_damage.items():
        listed = ", ".join(f"{kld:.5f} up to {n} tokens" for n, kld in by_context.items())
        lines.append(f"cache with {what.upper()}: KL divergence {listed}")
    time = f"decoding {plan.decode_cost:.2f}x the time of {TIME_UNIT.name}"
    lines.append(f"{_predicted(report)}, {time}")
    if report.ours is not None:
        lines.append(_measured(report))
    if report.own is not None:
        lines += _own_text_lines(report.own, report.ours)
    if report.gate is not None:
        lines += gate_lines(report.gate)
    elif report.shipped == "nothing":
        forecast = report.forecast
        note = " on the CPU alone (how fast the GPU is here is known after the first job)"
        took = _duration(forecast.seconds) + (note if forecast.gpu_untimed else "")
        lines.append(
            f"would take about {took}, {forecast.disk_bytes / _MIB:,.0f} MiB of disk, "
            f"{forecast.memory_bytes / _MIB:,.0f} MiB of memory"
        )
    return [*lines, *_ways(report), *plan.notes, *report.warnings]


def _ways(report: QuantizeReport) -> list[str]:
    """Lines about unusual settings that were used to make the file."""
    lines = []
    if report.shipped != "stock":
        text = "tensors whose weights already fit {grid} and lose nothing more: {n}"
        lines += [text.format(grid=grid, n=n) for grid, n in exact_counts(report.plan).items()]
        if rows := report.plan.added_rows:
            lines.append(f"rows of these tensors that fit no grid (tokens added later) and lose as usual: {rows:,}")
    if report.stopped:
        lines.append(f"stopped early: {STOPPED[report.stopped]}; start again to continue from what was measured")
    if report.smoothed:
        lines.append(
            f"{report.smoothed} inputs smoothed: LoRA adapters of the original work here, but not in other programs"
        )
    if report.gpu_layers:
        lines.append(f"{report.gpu_layers} layers were evaluated on the GPU (--gpu-layers 0: on the CPU)")
    if report.effort:
        more = f"; {report.more}" if report.more else ""
        lines.append(f"within the time given: {report.effort}{more}")
    return lines


# The steps that the file of a stopped job lacks.
STOPPED = {
    "unmeasured": "this first version was made without measuring the model, and not compared with a preset",
    "uncompared": "this file was not compared with a preset",
}
# The name of a type's grid.
GRIDS = {t.name: t.traits.grid for t in GgmlType if t.traits.grid}
FLOAT_NAMES = frozenset(t.name for t in FLOAT_TYPES)


def missed_grids(exact: Mapping[str, tuple[str, ...]], plan: QuantPlan) -> list[str]:
    """What a preset loses of a model that was trained for few bits. `exact`: the types that hold each tensor."""
    missed = (t for t in plan.tensors if not t.locked and t.name in exact and t.qtype not in exact[t.name])
    counts = Counter(exact[t.name][0] for t in missed if t.qtype not in FLOAT_NAMES)
    return [
        f"{n} tensors already fit {GRIDS.get(name, name)}, which {plan.goal.mix} does not keep: "
        f"--type {name} or a --budget loses nothing more there"
        for name, n in counts.most_common(1)
    ]


def exact_counts(plan: QuantPlan) -> dict[str, int]:
    """The number of tensors that lose nothing, by the name of their grid; the most frequent first."""
    counts = Counter(GRIDS[t.exact] for t in plan.tensors if t.exact)
    return dict(counts.most_common())


def _predicted(report: QuantizeReport) -> str:
    evidence = report.plan.evidence
    if evidence.sensitivity_sha256 or not report.forecast.kld_high:
        return f"predicted KL divergence {report.plan.damage:.5f}"
    basis = "a quick test of this model" if evidence.quick_test else "other models: --quick-test narrows it"
    return f"expected KL divergence {report.forecast.kld_low:.2g} to {report.forecast.kld_high:.2g}, from {basis}"


def _measured(report: QuantizeReport) -> str:
    assert report.ours is not None
    ours = report.ours
    text = (
        f"measured KL divergence {ours.kld_mean.value:.5f} ({ours.kld_mean.low:.5f} to {ours.kld_mean.high:.5f}), "
        f"99 % {ours.kld_p99:.4f}, same top token {100 * ours.top1_agreement_frac.value:.1f} %, "
        f"perplexity {ours.perplexity.value:.3f} (reference {ours.reference_perplexity:.3f})"
    )
    if report.stock is None:
        return text
    text += f"; llama.cpp's {report.stock_mix} of at most this size: {report.stock.kld_mean.value:.5f}"
    ratio = ours.ratio
    return text if ratio is None else f"{text}, ratio {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


def _own_text_lines(own: FileReport, elsewhere: FileReport | None) -> list[str]:
    """Lines about calibration on the user's text: its effect on that text, and on general text."""
    text = f"on your own text: KL divergence {own.kld_mean.value:.5f}"
    if own.ratio is None or elsewhere is None or elsewhere.ratio is None:
        return [text]
    return [
        f"{text}, {_compared_with_preset(own.ratio)}",
        f"elsewhere: KL divergence {elsewhere.kld_mean.value:.5f}, {_compared_with_preset(elsewhere.ratio)}",
    ]


def _compared_with_preset(ratio: Interval) -> str:
    """Gain or loss compared with the preset of the same size."""
    if ratio.low <= 1 <= ratio.high:
        return f"neither better nor worse than the llama.cpp preset ({ratio.low:.3f} to {ratio.high:.3f} of its)"
    change = f"{abs(1 - ratio.value):.0%} {'less' if ratio.value < 1 else 'more'} than the llama.cpp preset"
    return f"{'gained' if ratio.value < 1 else 'lost'}: {change} ({ratio.low:.3f} to {ratio.high:.3f} of its)"


def _duration(seconds: float) -> str:
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes} min {remainder} s" if minutes else f"{remainder} s"


def goal_text(plan: QuantPlan) -> str:
    """The goal of a plan, as stored in the file's metadata."""
    goal = plan.goal
    if goal.kind == "mix":
        return str(goal.mix)
    if goal.kind == "bpw":
        return f"{goal.bpw} bits per weight"
    context = f" at {goal.n_seq}x{goal.n_ctx} tokens" if goal.kind == "fit" else ""
    return f"{goal.limit_bytes} bytes{context}"


def provenance_of(report: QuantizeReport, tier: Tier) -> Provenance:
    """The provenance stored in the file's metadata."""
    plan, shipped = report.plan, report.stock if report.shipped == "stock" else report.ours
    return Provenance(
        tool=report.tool,
        tier=tier,
        rounding=Rounding.STOCK if report.shipped == "stock" else report.rounding,
        smoothed=bool(report.smoothed),
        goal=goal_text(plan),
        source_sha256=report.source_sha256,
        imatrix_sha256=plan.evidence.imatrix_sha256,
        evidence_sha256=plan.evidence.sensitivity_sha256,
        plan_sha256=sha256(msgspec.json.encode(plan)).hexdigest(),
        predicted_kld=None if report.shipped == "stock" else plan.damage,
        kld_mean=shipped.kld_mean.value if shipped else None,
        kld_p99=shipped.kld_p99 if shipped else None,
        stock_mix=report.stock_mix or "",
        stock_kld_mean=report.stock.kld_mean.value if report.stock else None,
        gate=receipt(report.gate, "stock" if report.shipped == "stock" else "ours") if report.gate else "",
    )

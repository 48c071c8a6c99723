"""What a file and its report state about their creation."""

import itertools
import os

import msgspec
import pytest

from quantize.files.gguf_file import read_gguf
from quantize.files.provenance import Provenance, blank, read_provenance, report_path
from quantize.job import forecast as forecasting
from quantize.job.forecast import (
    EFFORTS,
    JobShape,
    Spent,
    _threads,
    effort_of,
    forecast,
    learn_rates,
    learned_rates,
    seconds_by_phase,
    slower_than_table,
    spend,
)
from quantize.job.gate import GateTask
from quantize.job.report import missed_grids, summary, write_report
from quantize.job.request import QuantizeReport
from quantize.plan.plan import PlanInput, make_plan
from quantize.plan.priors import prior_damage
from quantize.plan.speed import model_spec
from quantize.tensor_rules import allows_quantization
from quantize.types import EvidenceRef, FileReport, Interval, Rounding, SizeTarget
from tests.support.reports import read_report


@pytest.fixture
def plan(shape):
    model = model_spec(read_gguf(shape.write()))
    question = PlanInput(
        model=model,
        damage=prior_damage(model),
        evidence=EvidenceRef(tier="instant", has_imatrix=False),
        header_bytes=5000,
    )
    return model, make_plan(question, SizeTarget(kind="bpw", bpw=4.5))


def shape_of(model, effort, threads=2, *, verified=True) -> JobShape:
    return JobShape(
        model=model,
        tier=effort.tier,
        rounding=effort.rounding,
        max_tokens=effort.max_tokens,
        probe_tokens=effort.probe_tokens,
        verify_tokens=effort.verify_tokens if verified else 0,
        threads=threads,
        source_bytes=1 << 20,
    )


def told(model, plan, **changes) -> QuantizeReport:
    facts = {
        "source": "a.gguf",
        "source_sha256": "0" * 64,
        "source_bytes": 1,
        "out": None,
        "file_bytes": None,
        "shipped": "nothing",
        "plan": plan,
        "rounding": "stock",
        "forecast": forecast(shape_of(model, EFFORTS[0]), plan, {}),
    }
    return QuantizeReport(**(facts | changes))


def test_provenance_never_changes_its_length():
    full = Provenance(
        tool="tessera",
        tier="balanced",
        rounding="gptq",
        smoothed=True,
        goal="123456789012 bytes at 256x1048576 tokens",
        source_sha256="f" * 64,
        imatrix_sha256="f" * 64,
        evidence_sha256="f" * 64,
        plan_sha256="f" * 64,
        predicted_kld=0.123456789,
        kld_mean=1.23456789e-5,
        kld_p99=123.456789,
        stock_mix="IQ3_XXS",
        stock_kld_mean=0.1,
    )
    assert len(full.encode()) == len(Provenance().encode()) == len(blank())
    back = read_provenance(full.encode().decode())
    assert back is not None
    assert back.source_sha256 == full.source_sha256
    assert back.kld_mean == pytest.approx(full.kld_mean, rel=1e-4)
    assert read_provenance("not json") is None
    with pytest.raises(ValueError, match="room"):
        Provenance(goal="x" * 2000).encode()


def test_a_report_survives_its_file(tmp_path, plan):
    path = report_path(tmp_path / "model.gguf")
    assert path.name == "model.tessera.json"
    report = told(*plan)
    write_report(path, report)
    assert read_report(path) == report
    assert [p.name for p in tmp_path.iterdir() if p.name != "shape.gguf"] == [path.name]


def test_a_report_of_before_gptq_had_its_name_is_read(tmp_path, plan):
    path, report = tmp_path / "model.tessera.json", told(*plan, rounding=Rounding.GPTQ)
    write_report(path, report)
    path.write_text(path.read_text("utf-8").replace('"rounding": "gptq"', '"rounding": "craft"'), "utf-8")
    assert '"craft"' in path.read_text("utf-8")
    assert read_report(path) == report


def test_the_summary_has_size_mix_and_forecast(plan):
    lines = summary(told(*plan, warnings=("mind the gap",)))
    assert "bits per weight" in lines[0]
    assert any("would take about" in line for line in lines)
    assert lines[-1] == "mind the gap"


def test_more_work_is_forecast_to_take_longer_and_phases_add_up(plan):
    model, chosen = plan
    found = [forecast(shape_of(model, e), chosen, {}) for e in EFFORTS]
    for quicker, longer in itertools.pairwise(found):
        assert quicker.seconds < longer.seconds
    for one in found:
        assert one.seconds == pytest.approx(sum(one.phases.values()))
        assert one.disk_bytes >= chosen.file_bytes
        assert one.memory_bytes > 0
    balanced = effort_of("balanced")
    alone = forecast(shape_of(model, balanced, verified=False), chosen, {})
    wide = forecast(shape_of(model, balanced, threads=8), chosen, {})
    assert alone.seconds < found[2].seconds
    assert wide.seconds == pytest.approx(found[2].seconds / 4)


def test_memory_of_tier_instant_is_forecast_by_threads_vocabulary_and_grids(plan):
    model, chosen = plan
    shape = shape_of(model, effort_of("instant"), threads=1, verified=False)
    table = msgspec.structs.replace(model.tensors[0], name="token_embd.weight", shape=(64, 260_000))
    others = [tensor for tensor in model.tensors if tensor.name != "token_embd.weight"]
    words = msgspec.structs.replace(model, tensors=(table, *others))
    on_grid = [msgspec.structs.replace(t, exact="Q4_0") for t in chosen.tensors]

    def memory(packed=chosen, **changes):
        return forecast(msgspec.structs.replace(shape, **changes), packed, {}).memory_bytes

    assert memory(threads=16) - memory() == 15 * forecasting._THREAD_BYTES
    assert memory(converts=True, model=words) - memory() == 260_000 * forecasting._TOKEN_BYTES
    assert memory(model=words) == memory()
    packing = [memory(msgspec.structs.replace(chosen, tensors=tuple(on_grid[:n])), threads=2) for n in (1, 2, 3)]
    assert packing[1] - packing[0] == forecasting._PACKING_BYTES
    assert packing[2] == packing[1], "one process for each thread"
    # A comparison holds the source and both files, and evaluates them.
    files = sum(t.num_values for t in model.tensors) * 2 + 2 * chosen.file_bytes
    assert memory(verify_tokens=2048) == files + forecasting._EVALUATION_BYTES


def test_the_conversion_of_a_folder_needs_disk(plan):
    model, chosen = plan
    shape = shape_of(model, effort_of("balanced"))
    folder = msgspec.structs.replace(shape, converts=True, source_bytes=1 << 30)
    need = [forecast(each, chosen, {}).disk_bytes for each in (shape, folder)]
    assert need[1] - need[0] == 1 << 30


def test_measuring_is_forecast_by_the_positions_that_swaps_compare(plan, monkeypatch):
    shape = shape_of(plan[0], effort_of("balanced"))
    every_second = seconds_by_phase(shape, {})["measure"]
    monkeypatch.setattr(forecasting, "SCORED_STEP", 8)
    assert seconds_by_phase(shape, {})["measure"] < every_second


def test_a_gate_is_forecast_by_its_tokens_and_by_four_processes(plan):
    shape = shape_of(plan[0], effort_of("balanced"), threads=1)

    def seconds(prompt_tokens, answer_tokens):
        gate = GateTask(name="g", cases=1, prompt_tokens=prompt_tokens, answer_tokens=answer_tokens)
        return seconds_by_phase(msgspec.structs.replace(shape, gate=gate), {})["gate"]

    matrices = [t for t in shape.model.tensors if allows_quantization(t)]
    layers = sum(t.num_values for t in matrices if t.name.startswith("blk."))
    weights = sum(t.num_values for t in matrices)
    start_s, read_s = 4 * forecasting._LOAD_S, 2 * weights * 1.3 / forecasting._DECODE_BYTES
    assert seconds(0, 0) == start_s
    assert seconds(10**6, 0) == pytest.approx(start_s + 2 * 10**6 * 2 * layers / forecasting._EVAL_FLOPS)
    assert seconds(0, 10**6) == pytest.approx(start_s + 10**6 * read_s)


def test_a_forecast_learns_from_the_jobs_of_this_machine(plan, tmp_path):
    model, chosen = plan
    shape = shape_of(model, effort_of("balanced"), verified=False)
    before = seconds_by_phase(shape, learned_rates(tmp_path))
    took = {p: 3 * s for p, s in before.items()}
    for seconds in (took, took, {"measure": 1e6}):  # a job interrupted by something else
        learn_rates(tmp_path, shape, told(model, chosen, seconds=seconds), set(seconds))
    after = seconds_by_phase(shape, learned_rates(tmp_path))
    assert after["measure"] == pytest.approx(3 * before["measure"], rel=1e-3)
    (tmp_path / "rates.json").write_text("[]")
    assert learned_rates(tmp_path) == learned_rates(tmp_path / "none")


def test_a_first_forecast_goes_by_what_the_machine_computes(plan, tmp_path, monkeypatch):
    shape = shape_of(plan[0], effort_of("balanced"))
    here = slower_than_table()
    assert 0.5 <= here <= 16.0
    assert slower_than_table() == here, "asked twice, probed once"
    monkeypatch.setattr(forecasting, "slower_than_table", lambda: 3.0)
    table, slow = seconds_by_phase(shape, {}), seconds_by_phase(shape, learned_rates(tmp_path))
    for phase in ("measure", "round", "verify"):
        assert slow[phase] == pytest.approx(3 * table[phase])
    assert slow["write"] == table["write"], "a disk is no slower where a processor is"
    (tmp_path / "rates.json").write_text('{"round": [1.5]}')
    assert learned_rates(tmp_path) == {"measure": 3.0, "round": 1.5, "verify": 3.0}


@pytest.mark.parametrize("told", ["0", "-1", "many", "", "999999"])
def test_a_setting_that_is_no_number_of_threads_does_not_end_a_forecast(monkeypatch, told):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", told)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert _threads() == allowed


def test_another_size_of_a_model_that_was_measured_takes_less(plan):
    model, chosen = plan
    shape = shape_of(model, effort_of("balanced"))
    first = forecast(shape, chosen, {}).phases
    second = forecast(msgspec.structs.replace(shape, measured=True), chosen, {}).phases
    assert 0 < second.pop("measure") < first.pop("measure") / 3
    assert second == first


def test_points_of_lattices_take_longer_and_the_next_job_is_not_taken_for_slower(plan, tmp_path):
    model, chosen = plan
    shape = shape_of(model, effort_of("balanced"), verified=False, threads=1)
    tensors = tuple(msgspec.structs.replace(t, qtype="IQ2_S") if t.qtype != "F32" else t for t in chosen.tensors)
    points = msgspec.structs.replace(chosen, tensors=tensors)
    usual, longer = (forecast(shape, p, {}) for p in (chosen, points))
    assert longer.phases["round"] > usual.phases["round"]
    small = forecast(msgspec.structs.replace(shape, smallest=True), chosen, {})
    assert small.phases["measure"] > usual.phases["measure"]
    learn_rates(tmp_path, shape, told(model, points, seconds={"round": longer.phases["round"]}), {"round"})
    assert forecast(shape, chosen, learned_rates(tmp_path)).phases["round"] == pytest.approx(usual.phases["round"])


def test_what_a_gpu_takes_is_learnt_apart_and_until_then_told_as_the_processors(plan, tmp_path):
    model, chosen = plan
    shape = shape_of(model, effort_of("balanced"), threads=1)
    on_gpu = msgspec.structs.replace(shape, gpu_layers=99)
    some = msgspec.structs.replace(shape, gpu_layers=model.num_layers - 1)
    before = seconds_by_phase(on_gpu, {})
    assert before == seconds_by_phase(shape, {})
    untold = forecast(on_gpu, chosen, {})
    assert (untold.gpu_untimed, forecast(shape, chosen, {}).gpu_untimed) == (True, False)
    assert "on the CPU alone" in " ".join(summary(told(model, chosen, forecast=untold)))

    took = {p: 0.1 * s if p in {"measure", "verify"} else 2 * s for p, s in before.items()}
    seen = measured(0.4, 0.35, 0.45)
    learn_rates(tmp_path, on_gpu, told(model, chosen, seconds=took, ours=seen, stock=seen), set(took))
    rates = learned_rates(tmp_path)

    after = forecast(on_gpu, chosen, rates)
    assert not after.gpu_untimed
    assert after.phases["measure"] == pytest.approx(0.1 * before["measure"], rel=1e-3)
    # The CPU rounds in every job; measuring on it, or with some of the layers, was not recorded.
    alone, partly = (forecast(s, chosen, rates) for s in (shape, some))
    assert alone.phases["round"] == partly.phases["round"] == pytest.approx(2 * before["round"], rel=1e-3)
    there = pytest.approx(rates["measure"] * before["measure"])
    assert alone.phases["measure"] == partly.phases["measure"] == there
    assert (alone.gpu_untimed, partly.gpu_untimed) == (False, True)


def test_a_given_time_buys_the_most_thorough_step_that_fits(plan):
    model, _ = plan
    shape = shape_of(model, effort_of("balanced"))
    needed = {e.name: sum(seconds_by_phase(shape_of(model, e), {}).values()) for e in EFFORTS}
    for name in ("instant", "quick", "balanced"):
        spent = spend(shape, needed[name] * 1.001, {})
        assert spent.effort.name == name
        assert "lower the KL divergence by about" in spent.more
    assert spend(shape, 1e9, {}) == Spent(effort=EFFORTS[-1], seconds=needed["max"])
    hasty = spend(shape, 0.001, {})
    assert hasty.effort.name == "instant"
    assert "even the fastest way takes" in hasty.more
    # A slower machine gets less done in the same time.
    slow = dict.fromkeys(("measure", "round", "write", "verify", "hash"), 1000.0)
    assert spend(shape, needed["balanced"], slow).effort.name == "instant"


def test_plans_travel_as_json(plan):
    _, chosen = plan
    assert msgspec.json.decode(msgspec.json.encode(chosen), type=type(chosen)) == chosen


def measured(value, low, high) -> FileReport:
    some = Interval(0.01, 0.009, 0.011)
    return FileReport(
        path="a.gguf",
        file_bytes=1,
        tokens=1000,
        kld_mean=some,
        kld_median=0.005,
        kld_p99=0.04,
        kld_p999=0.1,
        top1_agreement_frac=Interval(0.95, 0.94, 0.96),
        perplexity=Interval(17.4, 17.0, 18.0),
        reference_perplexity=17.2,
        ratio=Interval(value, low, high),
    )


def test_what_is_gained_on_ones_own_text_and_lost_elsewhere_is_told(plan):
    report = told(*plan, shipped="ours", own=measured(0.4, 0.35, 0.45), ours=measured(1.2, 1.1, 1.3))
    lines = "\n".join(summary(report))
    assert (
        "on your own text: KL divergence 0.01000, gained: 60% less than the llama.cpp preset (0.350 to 0.450"
        in lines
    )
    assert (
        "elsewhere: KL divergence 0.01000, lost: 20% more than the llama.cpp preset (1.100 to 1.300 of its)"
        in lines
    )
    even = told(*plan, shipped="ours", own=measured(0.9, 0.8, 1.1), ours=measured(0.4, 0.3, 0.5))
    assert "neither better nor worse than the llama.cpp preset (0.800 to 1.100 of its)" in "\n".join(summary(even))


def test_a_preset_that_loses_what_a_smaller_type_keeps_is_told(plan):
    """A model trained for 4 bits in Q4_K_M: the habit of most users, and the largest loss."""
    model, _ = plan
    names = [t.name for t in model.tensors if t.name.endswith("ffn_up.weight")]
    exact = dict.fromkeys(names, ("Q4_0", "Q4_1"))
    question = PlanInput(
        model=model, damage=prior_damage(model), evidence=EvidenceRef(tier="instant", has_imatrix=False),
        header_bytes=5000, exact=exact,
    )  # fmt: skip

    def told_of(mix):
        return missed_grids(exact, make_plan(question, SizeTarget(kind="mix", mix=mix)))

    (told,) = told_of("Q4_K_M")
    assert told.startswith(f"{len(names)} tensors already fit 4 bits, which Q4_K_M does not keep: --type Q4_0 or a")
    assert told_of("Q4_0") == told_of("F16") == []

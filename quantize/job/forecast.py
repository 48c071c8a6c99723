"""Forecasts a job: time by phase, disk and memory. Rounded tensors in the cache reduce the time.

The work follows from the model's shape. The speed of this machine comes from earlier jobs. Without earlier jobs, it
comes from a table and a short benchmark.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from math import prod
from pathlib import Path
from statistics import median

import msgspec

from devices.process_memory import allowed_cores
from quantize.files.measurement_folder import read_json, write_json
from quantize.ggml_types import MEASURED, USUAL
from quantize.gptq.codebooks import LATTICES
from quantize.job.gate import GateTask
from quantize.job.request import Forecast, QuantizeReport, QuantizeRequest
from quantize.measure.hessians import tokens_for_width
from quantize.measure.probe_groups import SCORED_STEP, probes
from quantize.measure.run import FACTOR_BYTES, parts_in_memory
from quantize.plan.llama_cpp_preset_rules import TensorRole
from quantize.plan.llama_cpp_presets import role_of
from quantize.plan.priors import loss_range
from quantize.plan.speed import is_fast
from quantize.tensor_rules import allows_quantization
from quantize.types import ModelSpec, QuantPlan, Rounding, SizeTarget, TensorSpec, Tier

# Phases named as in `QuantizeReport.seconds`, in the order of the progress bar.
PHASES = ("convert", "hash", "first", "measure", "plan", "round", "write", "verify", "gate")
Rates = Mapping[str, float]

# Compute-bound phases: their time scales with the speed of this machine compared with the table's.
_COMPUTED = ("measure", "round", "verify")
# Seconds of one core per unit of work, units as in `_core_seconds`. Measured: log-archive.md, "Quantization in
# minutes" ("Phases").
_EVAL_FLOPS, _GRAM_FLOPS = 150e9, 70e9
_HASH_BYTES, _WRITE_WEIGHTS, _CONVERT_BYTES = 400e6, 16e6, 150e6
_LOGIT_S = 12e-9  # comparing one logit with the reference's
_PLAIN_S, _GPTQ_S, _GPTQ_COLUMN_S, _FACTOR_S = 1.7e-6, 0.27e-6, 0.12e-9, 3.5e-11
# Bytes of weights read per generated token, by all cores together. Measured: log-archive.md, engine.
_DECODE_BYTES = 10e9
_GATE_FILE_FRAC = 0.3  # fraction of the source's 16 bits, for a forecast before there is a file
# Seconds per weight of choosing eight signs together with their codebook entries, including three runs of ggml's
# search; then the additional seconds of the smallest types while errors are measured: ggml's search for all of
# them, and the choice. Measured: log-archive.md, "Points and signs".
_OCTET_S, _SMALLEST_PLAIN_S, _SMALLEST_GPTQ_S = 3.3e-6, 1.1e-6, 6.6e-6
# Memory of a job without evaluation: the job's own process and its child process with their libraries; what each
# thread adds while a file is written (rows in float32, as stored and packed); each process that packs weights on a
# grid; and each token of a folder's tokenizer. Measured: docs/dev/quantization.md, "What it costs".
_PROCESSES_BYTES, _THREAD_BYTES, _PACKING_BYTES, _TOKEN_BYTES = 176 << 20, 16 << 20, 80 << 20, 1200
_EVALUATION_BYTES = 2 << 30  # contexts, predictions and Hessians, in addition to the models
_LOAD_S = 1.0  # starting a child process and loading Python's libraries
_VERIFY_RUNS = 4.3  # the source once, and two quantized files, which are slower for large batches
_SAMPLED_ROWS = 128
_SMOOTHING_TOKENS = 4096 + 1536  # measuring the channels, and a third of the windows again after scaling
_SWAPPED_FRACTION = 0.55  # average fraction of the model that is evaluated after a swap: from its layer to the end
_TYPES = 7  # average number of types per row that GPTQ rounds to
_MAX_RATES = 5
# Phases that evaluate the model; their duration changes with layers on the GPU.
_EVALUATING = frozenset({"measure", "verify"})


class JobShape(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that determine a job's duration.

    `verify_tokens` 0 skips the comparison; `gate` None skips the quality gate. `gpu_layers` are evaluated on the
    GPU. `octet_weights` are rounded to codebook types (known with a plan). With `smallest`, the KL divergence of
    the smallest types is measured too. With `measured`, the cache already holds the measurements.
    """

    model: ModelSpec
    tier: Tier
    rounding: Rounding
    max_tokens: int
    probe_tokens: int
    verify_tokens: int
    gate: GateTask | None = None
    threads: int = 1
    gpu_layers: int = 0
    octet_weights: int = 0
    smallest: bool = False
    source_bytes: int = 0
    converts: bool = False
    measured: bool = False


def seconds_by_phase(shape: JobShape, rates: Rates) -> dict[str, float]:
    """Seconds by phase, in order; omits phases that do not run.

    Jobs with layers on the GPU use the rates of earlier such jobs; without any they use the CPU's rates.
    """
    cores = max(1, shape.threads)
    return {
        p: s / cores * rates.get(_rate_name(p, shape), rates.get(p, 1.0))
        for p, s in _core_seconds(shape).items()
        if s > 0
    }


def _rate_name(phase: str, shape: JobShape) -> str:
    """Key of a phase's rate; phases that evaluate the model have separate keys with layers on the GPU."""
    if not shape.gpu_layers or phase not in _EVALUATING:
        return phase
    return f"{phase} {'gpu' if shape.gpu_layers >= shape.model.num_layers else 'part'}"


def forecast(shape: JobShape, plan: QuantPlan, rates: Rates) -> Forecast:
    """Seconds, free disk bytes and memory bytes for the whole job with this plan."""
    shape = msgspec.structs.replace(shape, octet_weights=_octet_weights(plan))
    file_bytes = plan.file_bytes
    phases = seconds_by_phase(shape, rates)
    # The job's own copies of the source: a folder's conversion, and the one with smoothed inputs.
    copied = shape.source_bytes * shape.converts + _source_bytes(shape.model) * _smooths(shape)
    packed = file_bytes if shape.rounding != Rounding.STOCK else 0
    compares = bool(shape.verify_tokens)
    low, high = loss_range(plan.damage, plan.evidence)
    untimed = any(_rate_name(p, shape) not in {p, *rates} for p in phases)
    return Forecast(
        seconds=sum(phases.values()),
        phases=phases,
        disk_bytes=(2 if compares else 1) * file_bytes + packed + copied,
        memory_bytes=_memory_bytes(shape, plan),
        kld=plan.damage,
        kld_low=low,
        kld_high=high,
        gpu_untimed=untimed,
    )


def _memory_bytes(shape: JobShape, plan: QuantPlan) -> int:
    """Memory of all processes of a job at its peak."""
    cores = max(1, shape.threads)
    if shape.tier != "instant" or shape.verify_tokens or shape.gate is not None:
        compared = 2 * plan.file_bytes if shape.verify_tokens else 0
        evaluating = _source_bytes(shape.model) + compared + _EVALUATION_BYTES
        width = max((t.row_values for t in shape.model.tensors if allows_quantization(t)), default=1)
        factored = parts_in_memory(cores, width) if shape.tier != "instant" else 0
        return max(evaluating, _PROCESSES_BYTES + factored * FACTOR_BYTES * width**2)
    # The process that converts also writes, and keeps its memory.
    converting = _TOKEN_BYTES * _num_tokens(shape.model) if shape.converts else 0
    packing = min(cores, len(plan.exact)) * _PACKING_BYTES
    return _PROCESSES_BYTES + converting + max(cores * _THREAD_BYTES, packing)


def _source_bytes(model: ModelSpec) -> int:
    """The weights in 16 bits."""
    return sum(t.num_values for t in model.tensors) * 2


def _num_tokens(model: ModelSpec) -> int:
    return next((t.shape[1] for t in model.tensors if role_of(t.name) is TensorRole.TOKEN_EMBD), 0)


def learned_rates(cache_dir: Path) -> dict[str, float]:
    """Slowdown of this machine relative to the table, by phase.

    It comes from the last jobs (separately with a GPU), otherwise it is measured now.
    """
    stored = read_json(cache_dir / "rates.json")
    rates = stored if isinstance(stored, dict) else {}
    rates = {p: median(map(float, values)) for p, values in rates.items() if isinstance(values, list) and values}
    if not rates.keys() >= set(_COMPUTED):
        rates = {**dict.fromkeys(_COMPUTED, slower_than_table()), **rates}
    return rates


def learn_rates(cache_dir: Path, shape: JobShape, report: QuantizeReport, whole: Collection[str]) -> None:
    """Store the durations of the phases that ran completely. Raises: DiskFull. OSError."""
    stored = read_json(cache_dir / "rates.json")
    rates: dict[str, list[float]] = stored if isinstance(stored, dict) else {}
    # Half of each window counts, and a comparison stops once it is clear: the time covers only the evaluated
    # tokens.
    seen = max((r.tokens * 2 for r in report.file_reports), default=0) if report.stock else 0
    shape = msgspec.structs.replace(shape, verify_tokens=seen, octet_weights=_octet_weights(report.plan))
    for phase, expected in seconds_by_phase(shape, {}).items():
        took = report.seconds.get(phase, 0.0)
        if phase in whole and took > 0 and expected > _LOAD_S:
            name = _rate_name(phase, shape)
            rates[name] = [*rates.get(name, []), round(took / expected, 4)][-_MAX_RATES:]
    write_json(cache_dir / "rates.json", rates)


def _octet_weights(plan: QuantPlan) -> int:
    """Number of weights in a plan that get codebook types."""
    return sum(prod(t.shape) for t in plan.tensors if t.qtype in LATTICES and t.qtype != t.source_qtype)


def _core_seconds(shape: JobShape) -> dict[str, float]:
    """Seconds of one core by phase, on the reference machine of the table."""
    model = shape.model
    matrices = [t for t in model.tensors if allows_quantization(t)]
    weights = float(sum(t.num_values for t in matrices))
    head = _head_values(model)
    # Embeddings are only looked up. If there is no separate head, they are multiplied at predicted positions only.
    body = weights - sum(
        t.num_values for t in matrices if role_of(t.name) in {TensorRole.TOKEN_EMBD, TensorRole.OUTPUT}
    )
    vocab = _num_tokens(model)

    def evaluated(tokens: float, predicted: float, part: float = 1.0) -> float:
        flops = 2 * part * body + 2 * predicted * head
        return tokens * flops / _EVAL_FLOPS + tokens * predicted * vocab * _LOGIT_S

    phases = dict.fromkeys(PHASES, 0.0)
    phases["hash"] = shape.source_bytes / _HASH_BYTES
    phases["convert"] = shape.source_bytes / _CONVERT_BYTES if shape.converts else 0.0
    phases["write"] = weights / _WRITE_WEIGHTS * (1 if shape.rounding == Rounding.STOCK else 0.15)
    if shape.tier != "instant" and shape.gate is None:
        phases["first"] = weights / _WRITE_WEIGHTS
    if shape.tier != "instant" and not shape.measured:
        phases["measure"] = _measuring(shape, matrices, evaluated)
        phases["measure"] += evaluated(_SMOOTHING_TOKENS, 0.0) if _smooths(shape) else 0.0
    if _smooths(shape):  # the copy is written again for each size
        phases["measure"] += weights / _WRITE_WEIGHTS * 0.15 + _LOAD_S
    if shape.rounding == Rounding.GPTQ:
        phases["round"] = sum(_gptq_seconds(t) for t in matrices) + shape.octet_weights * _OCTET_S + _LOAD_S
    if shape.verify_tokens:
        phases["write"] += weights / _WRITE_WEIGHTS
        phases["verify"] = _VERIFY_RUNS * (evaluated(shape.verify_tokens, 0.5) + weights / 1e9) + _LOAD_S
    if shape.gate is not None:
        gate = shape.gate
        # all cores share the memory bandwidth
        read_s = 2 * weights * (1 + _GATE_FILE_FRAC) / _DECODE_BYTES * shape.threads
        phases["gate"] = 2 * evaluated(gate.prompt_tokens, 0.0) + gate.answer_tokens * read_s + 4 * _LOAD_S
    return phases


def _measuring(shape: JobShape, matrices: list[TensorSpec], evaluated: Callable[..., float]) -> float:
    tokens = min(shape.max_tokens, tokens_for_width(max((t.row_values for t in matrices), default=1)))
    groups = {(t.name.rpartition(".")[0].rpartition(".")[0], t.row_values) for t in matrices}
    squares = sum(float(width) ** 2 for _, width in groups)
    probed = probes(shape.model.num_layers, shape.tier, len(matrices))
    sampled = [min(t.num_rows, _SAMPLED_ROWS) * t.row_values for t in matrices]
    by_gptq = 1.0 if shape.tier == "max" else min(1.0, probed / max(1, 4 * shape.model.num_layers))
    return (
        # Once, even if the Hessians do not fit in memory together: each pass continues where the previous one
        # ended.
        evaluated(tokens, 0.0)
        + tokens * squares / _GRAM_FLOPS
        + probed * evaluated(shape.probe_tokens, 1 / SCORED_STEP, _SWAPPED_FRACTION)
        + sum(sampled) * _PLAIN_S * (1 + 3 * by_gptq)
        + shape.smallest * sum(sampled) * (_SMALLEST_PLAIN_S * (1 + 2 * by_gptq) + _SMALLEST_GPTQ_S * by_gptq)
        + by_gptq * _TYPES * sum(_grid_seconds(s, t.row_values) for s, t in zip(sampled, matrices, strict=True))
        + 4 * _LOAD_S
    )


def _smooths(shape: JobShape) -> bool:
    return shape.tier != "instant" and shape.rounding == Rounding.GPTQ


def _gptq_seconds(tensor: TensorSpec) -> float:
    width = tensor.row_values
    experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
    return _grid_seconds(tensor.num_values, width) + experts * _FACTOR_S * float(width) ** 3


def _grid_seconds(values: int, width: int) -> float:
    return values * (_GPTQ_S + _GPTQ_COLUMN_S * width)


def _head_values(model: ModelSpec) -> int:
    values_by_name = {t.name: t.num_values for t in model.tensors}
    return values_by_name.get("output.weight", values_by_name.get("token_embd.weight", 0))


# A product of two square float matrices takes some 10 ms. The best of a few runs is the machine's speed.
_SIDE = 1024
_ROUNDS = 5
# Speed of one core while all cores compute, on the reference machine of the forecast's table. Measured:
# log-archive.md, "Forecast by the machine's own speed".
_TABLE_FLOPS = 160e9
# Limits: BLAS libraries with matrix units say little about llama.cpp's speed without them.
_LEAST, _MOST = 0.5, 16.0
_CACHE_S = 600.0  # the load of other programs changes within minutes


def slower_than_table() -> float:
    """Slowdown of this machine relative to the forecast's table. Takes some 50 ms, once in ten minutes."""
    return _probed(int(time.monotonic() / _CACHE_S))


@lru_cache(maxsize=1)
def _probed(_when: int) -> float:
    import numpy as np

    matrix = np.full((_SIDE, _SIDE), 0.5, dtype=np.float32)
    out = np.empty_like(matrix)
    np.matmul(matrix, matrix, out=out)  # the first product starts the library's threads
    seconds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        np.matmul(matrix, matrix, out=out)
        seconds.append(time.perf_counter() - started)
    flops = 2 * _SIDE**3 / min(seconds) / _threads()
    return min(max(_TABLE_FLOPS / flops, _LEAST), _MOST)


def _threads() -> int:
    """Threads of numpy's BLAS library: as configured, else the cores that this process may use."""
    setting = os.environ.get("OPENBLAS_NUM_THREADS", "")
    allowed = allowed_cores()
    return min(int(setting), allowed) if setting.isdecimal() and int(setting) > 0 else allowed


# Effort levels of a job, from seconds to hours, and the best one for a given time.


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """One effort level. `kld_factor` is the expected KL divergence relative to the balanced level."""

    name: str
    tier: Tier
    rounding: Rounding
    max_tokens: int
    probe_tokens: int
    verify_tokens: int
    kld_factor: float


# From quick to thorough. `verify_tokens` is the usual length of a comparison, which stops once the result is clear.
# Measured: factors of the output error by tokens, the log ("Quantization in minutes"), and of max and instant
# ("Smoothing in balanced"); instant is allocation by priors with ggml's rounding, compared with GPTQ.
EFFORTS = (
    Effort(
        name="instant", tier="instant", rounding=Rounding.STOCK, max_tokens=0, probe_tokens=0, verify_tokens=2048,
        kld_factor=2.4,
    ),
    Effort(
        name="quick", tier="balanced", rounding=Rounding.GPTQ, max_tokens=8192, probe_tokens=768,
        verify_tokens=4096, kld_factor=1.12,
    ),
    Effort(
        name="balanced", tier="balanced", rounding=Rounding.GPTQ, max_tokens=32_768, probe_tokens=1536,
        verify_tokens=8192, kld_factor=1.0,
    ),
    Effort(
        name="max", tier="max", rounding=Rounding.GPTQ, max_tokens=32_768, probe_tokens=1536, verify_tokens=16_384,
        kld_factor=0.96,
    ),
)  # fmt: skip


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The effort level for a given time, its expected seconds, and the benefit of more time (empty: none)."""

    effort: Effort
    seconds: float
    more: str = ""


def effort_of(tier: Tier) -> Effort:
    """The default level of a tier."""
    return next(e for e in EFFORTS if e.name == tier)


# Below this many bits per weight of the whole file, the smallest types are measured too; ggml rounds to them
# slowly.
_SMALL_BITS = 3.5


def types_to_measure(request: QuantizeRequest, spec: ModelSpec) -> tuple[str, ...]:
    """The types to measure for a request, depending on its goal and on the measured speeds of this machine."""
    small = _is_small(request.goal, spec)
    return tuple(
        t.name
        for t in MEASURED
        if t in USUAL or (is_fast(t, request.device, request.speeds) if t.traits.if_fast else small)
    )


def _is_small(goal: SizeTarget, spec: ModelSpec) -> bool:
    bits = goal.bpw
    if bits is None and goal.limit_bytes is not None:
        bits = 8 * (goal.limit_bytes - goal.fixed_bytes) / max(1, sum(t.num_values for t in spec.tensors))
    return bits is not None and bits < _SMALL_BITS


def spend(shape: JobShape, time_s: float, rates: Rates) -> Spent:
    """The best effort level within a time; the quickest level if none fits."""
    needed = [(e, sum(seconds_by_phase(_at(shape, e), rates).values())) for e in EFFORTS]
    fitting = [(e, s) for e, s in needed if s <= time_s]
    effort, seconds = min(fitting or needed[:1], key=lambda pair: pair[0].kld_factor)
    better = [(e, s) for e, s in needed if e.kld_factor < effort.kld_factor]
    hints = []
    if not fitting:
        hints.append(f"even the fastest way takes about {_duration(seconds)}")
    if better:
        more, longer = min(better, key=lambda pair: pair[1])
        gain = 1 - more.kld_factor / effort.kld_factor
        hints.append(f"{_duration(longer)} in all ({more.name}) should lower the KL divergence by about {gain:.0%}")
    return Spent(effort=effort, seconds=seconds, more="; ".join(hints))


def job_shape(
    request: QuantizeRequest,
    rounding: Rounding,
    spec: ModelSpec,
    source_bytes: int,
    *,
    verifies: bool,
    measured: bool = False,
) -> JobShape:
    """The properties that determine how long a request takes on a model."""
    usual = next((e for e in EFFORTS if e.tier == request.tier and e.max_tokens == request.max_tokens), None)
    compared = (usual or effort_of(request.tier)).verify_tokens
    return JobShape(
        model=spec,
        tier=request.tier,
        rounding=rounding,
        max_tokens=request.max_tokens,
        probe_tokens=request.probe_tokens,
        verify_tokens=min(compared, request.verify_tokens) if verifies else 0,
        gate=request.gate,
        threads=request.threads,
        gpu_layers=request.gpu_layers,
        smallest=_is_small(request.goal, spec),
        source_bytes=source_bytes,
        converts=request.source.is_dir(),
        measured=measured,
    )


def _at(shape: JobShape, effort: Effort) -> JobShape:
    return msgspec.structs.replace(
        shape,
        tier=effort.tier,
        rounding=effort.rounding,
        max_tokens=effort.max_tokens,
        probe_tokens=effort.probe_tokens,
        verify_tokens=effort.verify_tokens if shape.verify_tokens else 0,
    )


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"

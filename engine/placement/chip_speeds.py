"""Expected prefill and decode speed of a chip, from its specifications and published runs of its family.

A prompt reaches a share of the chip's peak. A generated token costs the bytes it reads, at a share of the
bandwidth, plus a cost per layer on GPUs. The constants are in chip_speeds.json. `tests/bench/chip_speeds.py` writes
those of GPUs and reports their error for a chip they were not fitted to.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from devices.chips import LINK, CpuKind, Gpu, chips, cpu_kind, gpu
from devices.msgspec_lock import learned
from devices.types import Device, Runtime

TABLE: Final = Path(__file__).with_name("chip_speeds.json")
# Families that compute prompts in 8 bits; all others use 16.
TENSOR_INT8: Final = frozenset({"nvidia", "gb10"})
# Families without matrix units whose prompts are a share of their integer dot products.
DP4A: Final = frozenset({"nvidia-dp4a", "rdna2-card", "rdna2-igpu"})
# A GPU without matrix units multiplies quantized weights with integer dot products. A device without these reaches
# this share of that speed. Source: RX 6800 XT with and without them, 1,846 and 921 tokens/s (ggml-org/llama.cpp,
# pull request 12135).
WITHOUT_INT_DOT: Final = 0.5
# Name of Tessera's own CPU kernels among the backends of `ChipSpeeds.types`.
OWN_KERNELS: Final = "own"
# A software renderer on the CPU, without the CPU's own kernels. Measured: log-archive.md, kernels.
SOFTWARE_GBS: Final = 2.4
SOFTWARE_GFLOPS: Final = 35.0
# Speed at which host weights are copied to a GPU for a prompt, GB/s. Published: gpt-oss-120b with all experts in
# RAM on an RTX 5080 reads 692 tokens/s (ollama, issue 11772); laptops have half the lanes.
CARD_LINK_GBS: Final = 20.0
LAPTOP_LINK_GBS: Final = 12.0
# Share of a link's known speed that is reached: 20 of the 28 GB/s of 16 lanes at the usual speed.
LINK_SHARE: Final = 0.7
# Used if no depths were published: speed of prompt attention and of reading the cache, relative to the weights.
# Source: the median of the values fitted to chips with published depths.
ATTENTION_SHARE: Final = 0.35
CACHE_SHARE: Final = 0.75
# Cost of a mixture's small products relative to the most expensive kind, which was fitted.
MIXTURE_LAYERS: Final[dict[str, float]] = {"few": 0.2, "many": 0.4, "mixed": 1.0}
MIXTURE_PROMPTS: Final[dict[str, float]] = {"few": 0.6, "many": 1.0, "mixed": 1.0}
# A card with more memory than this has matrix units, unless the card or the table reports otherwise. An assumption.
MATRIX_FROM_BYTES: Final = 9 << 30
# Prompt operations per byte of bandwidth on a worker, which reports nothing else: between GPUs with and without
# matrix units. An assumption.
REMOTE_FLOP_PER_BYTE: Final = 12.0
# An integrated GPU copies within the same memory that it reads from.
SHARED_LINK_SHARE: Final = 0.4

Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Sources = Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
# Kinds of mixtures: up to four experts per token, more than four, or more plus dense or recurrent parts.
Mixture = Literal["few", "many", "mixed"]


class GpuSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One family of GPUs, or one chip of it, through one backend.

    `share`: share of its peak in prompts, or `tflops` if its peak is unknown; `reads`: share of its bandwidth;
    `chips`: number of chips it was fitted to (0: copied from related families).
    """

    family: Text
    chip: str = ""
    backend: Text
    share: Positive | None = None
    tflops: Positive | None = None
    reads: Positive
    layer_ms: NotNegative
    chips: int = 0


class MixtureSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cost of mixtures compared with dense models: ms per layer and token, and share of the prompt speed."""

    vendor: Text
    kind: Literal["igpu", "dgpu", "any"]
    backend: Text
    layer_ms: dict[Mixture, NotNegative]
    prompt: dict[Mixture, Positive]
    sources: Sources


class CpuSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPUs: TFLOPS per core and GHz, share of the bandwidth, and GB/s that one thread reads.

    `unpack_ns`: nanoseconds that one core needs to multiply by a quantized weight; `layer_us`: how long the threads
    wait for each other per layer and token; `token_us`: sampling a token and sending it. `own_attention`: prompt
    speed of Tessera's attention, relative to llama.cpp's. `wide_reads`: share of a wide memory bus that the cores
    of an unknown CPU reach.
    """

    core: Positive
    core_i8mm: Positive
    core_plain: Positive
    slow_core: Positive
    reads: Positive
    thread_gbs: Positive
    unpack_ns: Positive
    layer_us: NotNegative
    token_us: NotNegative
    mixture: Positive
    own_attention: Positive
    wide_reads: Positive
    sources: Sources


class UnknownSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs that are in no table, by memory: bandwidth, and prompt operations per byte of it.

    `matrix_flop_per_byte`: with matrix units. Without them an unlisted GPU is an old or a small one.
    """

    kind: Literal["igpu", "dgpu"]
    up_to_gib: Positive | None = None
    bandwidth_gbs: Positive
    flop_per_byte: Positive
    matrix_flop_per_byte: Positive
    reads: Positive
    layer_ms: NotNegative


class TypeSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Relative prompt speed with weights of a type that `match` names, through one backend.

    `by_rows`: llama.cpp has no kernel for several of its rows at once, so unpacking takes longer.
    """

    backend: Text
    match: Text
    prompt: Positive
    by_rows: bool = False
    sources: Sources


class OpenvinoSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """OpenVINO on one kind of device with weights of a type that `match` names.

    `gain`: compared with Vulkan there (on a CPU: with llama.cpp's kernels). For an NPU: `reads` and `share` of its
    TOPS.
    """

    kind: Literal["cpu", "igpu", "dgpu", "npu"]
    match: Text
    gain: Positive | None = None
    reads: Positive | None = None
    share: Positive | None = None
    sources: Sources


class Npu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operations per second (10^12) of an NPU whose name contains `match`."""

    match: str
    tops: Positive
    sources: Sources


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates of one device through one backend. The time of a token is a constant plus a term that grows with depth.

    A response's token takes the sum of these terms:
    - bytes of weights / `gbs` (16-bit weights: `wide_gbs`; a mixture's also `wide_experts_gbs`);
    - `unpack_s` for each billion weights of fewer than 16 bits;
    - bytes of the cache at that depth / `cache_gbs`, and the operations of attention;
    - fixed seconds per token, per layer, per layer of experts and per recurrent layer.

    A prompt's token takes operations of weights / `gflops` and of attention / `attention_gflops`, plus seconds
    per token, recurrent layer, billion BF16 weights and expert. Its attention adds seconds per billion pairs of a
    head and a cached token, more for those whose mask no cache of the chip holds, and per billion multiply-adds of
    wide heads. Each ubatch adds seconds per GB of weights, per layer and per GB of cache. None: use the rule of the
    chip's family, which does not have that term.
    """

    gbs: Positive
    gflops: Positive
    layer_s: NotNegative = 0.0
    unpack_s: NotNegative = 0.0
    wide_gbs: Positive | None = None
    wide_experts_gbs: Positive | None = None
    cache_gbs: Positive | None = None
    token_s: NotNegative = 0.0
    expert_layer_s: NotNegative | None = None
    linear_s: NotNegative = 0.0
    answer_attention_gflops: Positive | None = None
    attention_gflops: Positive | None = None
    prompt_token_s: NotNegative = 0.0
    prompt_linear_s: NotNegative = 0.0
    prompt_wide_s: NotNegative = 0.0
    prompt_experts_s: NotNegative | None = None
    piece_gb_s: NotNegative = 0.0
    piece_layer_s: NotNegative = 0.0
    piece_cache_gb_s: NotNegative = 0.0
    prompt_pair_s: NotNegative = 0.0
    prompt_mask_s: NotNegative = 0.0
    prompt_wide_heads_s: NotNegative = 0.0

    @property
    def cache_read_gbs(self) -> float:
        """GB/s at which the cache is read."""
        return self.cache_gbs or CACHE_SHARE * self.gbs

    @property
    def attention_rate(self) -> float:
        """GFLOPS of prompt attention."""
        return self.attention_gflops or ATTENTION_SHARE * self.gflops


# Rates that grow with the memory's speed and with the number of units, and seconds that shrink. All others are the
# same for chips of one family and memory.
MEMORY_RATES: Final = ("gbs", "wide_gbs", "wide_experts_gbs", "cache_gbs")
COMPUTE_RATES: Final = ("gflops", "attention_gflops", "answer_attention_gflops")
MEMORY_SECONDS: Final = ("piece_gb_s", "piece_cache_gb_s")
COMPUTE_SECONDS: Final = (
    "prompt_token_s", "prompt_linear_s", "prompt_wide_s", "prompt_experts_s", "prompt_pair_s", "prompt_mask_s",
    "prompt_wide_heads_s",
)  # fmt: skip


class SharedSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Total tokens/s of several answers generated together, relative to one alone, by their number.

    `family`: of GPUs, or `any` for all that are in no other row; `experts`: of mixtures.
    """

    family: Text
    backend: Text
    experts: bool
    gains: Annotated[tuple[tuple[int, Positive], ...], msgspec.Meta(min_length=2)]
    sources: Sources


class ArchitectureSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An architecture whose kernels a backend lacks: its seconds compared with the rule's, and those it grows by.

    `answers` and `prompts` are factors; `answer_depth_s` and `prompt_depth_s` are seconds per token before it.
    """

    architecture: Text
    family: Text
    backend: Text
    answers: Positive
    answer_depth_s: NotNegative
    prompts: Positive
    prompt_depth_s: NotNegative
    sources: Sources


class FittedSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates from published runs of one chip at several depths, used instead of the family's rule.

    Chips of its family with the same memory use them too, by their size.
    """

    chip: Text
    backend: Text
    models: int
    runs: int
    rates: Rates


class ChipSpeeds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole table."""

    about: tuple[str, ...]
    gpus: tuple[GpuSpeed, ...]
    fitted: tuple[FittedSpeed, ...]
    mixtures: tuple[MixtureSpeed, ...]
    shared: tuple[SharedSpeed, ...]
    architectures: tuple[ArchitectureSpeed, ...]
    types: tuple[TypeSpeed, ...]
    cpu: CpuSpeed
    unknown: tuple[UnknownSpeed, ...]
    openvino: tuple[OpenvinoSpeed, ...]
    npus: tuple[Npu, ...]


@cache
def chip_speeds() -> ChipSpeeds:
    """The constants that ship with Tessera. Raises: ValueError: the file does not match its schema."""
    return msgspec.json.decode(TABLE.read_bytes(), type=learned(ChipSpeeds))


@cache
def rule_version() -> str:
    """Changes with the constants; speeds that are stored as multiples of forecasts are worthless then."""
    return hashlib.sha256(TABLE.read_bytes()).hexdigest()[:8]


def rates(device: Device, backend: str, threads: int | None = None) -> Rates:
    """Rates for dense models of the usual types. `threads`: of a CPU; None: one per fast core."""
    if device.vendor == "software":
        return Rates(gbs=SOFTWARE_GBS, gflops=SOFTWARE_GFLOPS)
    if device.kind == "cpu":
        return _cpu_rates(device, threads)
    if device.kind not in {"igpu", "dgpu"}:  # a worker reports its own bandwidth; an NPU has its own rule
        gbs = bandwidth(device)
        return Rates(gbs=gbs, gflops=gbs * REMOTE_FLOP_PER_BYTE)
    chip = gpu(device.chip)
    runtime = next((r for r in device.runtimes if r.backend == backend), None)
    if runtime is None and chip is not None:  # this backend is not installed, as for OpenVINO by Vulkan
        runtime = Runtime(backend, "", 0, 0, 0, "unknown", matrix_units=chip.has_matrix(backend, "linux"))
    chip_speed = speed_of(chip, backend) if chip is not None else None
    if chip is None or chip_speed is None:
        return _unknown_rates(device, runtime)
    fitted = _fitted_rates(chip.id, backend, has_dot=has_dot(runtime))
    if fitted is not None and has_matrix(runtime) == bool(chip.matrix):
        published, own = chip.bandwidth_gbs, device.memory.bandwidth_gbs
        return _scaled(fitted, own / published if own and published else 1.0, 1.0)
    return ruled_rates(device, chip, chip_speed, runtime)


def ruled_rates(device: Device, chip: Gpu, chip_speed: GpuSpeed, runtime: Runtime | None) -> Rates:
    """Rates by the rule for the chip's family."""
    reads, tflops = reached(chip.id, chip_speed.backend, matrix=has_matrix(runtime), has_dot=has_dot(runtime))
    return Rates(gbs=bandwidth(device) * reads, gflops=tflops * 1000, layer_s=chip_speed.layer_ms / 1000)


@cache
def reached(chip_id: str, backend: str, *, matrix: bool, has_dot: bool) -> tuple[float, float]:
    """Share of its bandwidth, and TFLOPS in prompts, that a chip reaches through a backend with a row for it.

    A chip without published runs is not faster than a larger one with runs, and not slower than a smaller one.
    """

    def own_rule(row: Gpu) -> tuple[float, float, bool]:
        speed = speed_of(row, backend)
        assert speed is not None
        return speed.reads, prompt_tflops(row, speed, matrix=matrix, has_dot=has_dot), bool(speed.chip)

    chip = gpu(chip_id)
    assert chip is not None
    reads, tflops, is_published = own_rule(chip)
    relatives = () if is_published else (row for row in chips().gpus if row.family == chip.family)
    for relative in relatives:
        its_reads, its_tflops, is_published = own_rule(relative)
        if is_published and relative.is_at_least(chip):
            reads, tflops = min(reads, its_reads), min(tflops, its_tflops)
        elif is_published and chip.is_at_least(relative):
            reads, tflops = max(reads, its_reads), max(tflops, its_tflops)
    return reads, tflops


@cache
def _fitted_rates(chip_id: str, backend: str, *, has_dot: bool) -> Rates | None:
    """Rates from published runs of the chip, else of a related one, scaled by what the rule says of both."""
    chip, rows = gpu(chip_id), [row for row in chip_speeds().fitted if row.backend == backend]
    own = next((row for row in rows if row.chip == chip_id), None)
    if own is not None or chip is None or chip.bandwidth_gbs is None:
        return own.rates if own is not None else None
    other = next((row for row in rows if (its := gpu(row.chip)) is not None and its.is_related(chip)), None)
    if other is None:
        return None
    both, matrix = (chip_id, other.chip), bool(chip.matrix)
    ruled = [reached(name, backend, matrix=matrix, has_dot=has_dot) for name in both]
    reads, computes = (own_value / its_value for own_value, its_value in zip(*ruled, strict=True))
    return _scaled(other.rates, reads, computes)


def _scaled(rates: Rates, reads: float, computes: float) -> Rates:
    """The rates of a chip whose memory and units are that many times as fast."""
    if reads == computes == 1.0:
        return rates
    values = msgspec.structs.asdict(rates)
    changed = {name: values[name] and values[name] * reads for name in MEMORY_RATES}
    changed |= {name: values[name] and values[name] * computes for name in COMPUTE_RATES}
    changed |= {name: values[name] and values[name] / reads for name in MEMORY_SECONDS}
    changed |= {name: values[name] and values[name] / computes for name in COMPUTE_SECONDS}
    return msgspec.structs.replace(rates, **changed)


def openvino_rates(device: Device, type_name: str, threads: int | None) -> Rates:
    """Rates of OpenVINO on a device with weights of this type."""
    table = chip_speeds()
    row = next(r for r in table.openvino if r.kind == device.kind and re.fullmatch(r.match, type_name))
    if row.reads is None or row.share is None:
        usual, gain = rates(device, "vulkan", threads), row.gain or 1.0
        return Rates(gbs=usual.gbs * gain, gflops=usual.gflops * gain, layer_s=usual.layer_s / gain)
    tops = next(npu.tops for npu in table.npus if npu.match in device.name)
    return Rates(gbs=bandwidth(device) * row.reads, gflops=1000 * tops * row.share)


def speed_of(chip: Gpu, backend: str) -> GpuSpeed | None:
    """The constants of a chip or its family through a backend, or through another backend if it has no row."""
    rows = [row for row in chip_speeds().gpus if row.family == chip.family]
    own = [row for row in rows if row.chip == chip.id and row.backend == backend]
    family = [row for row in rows if not row.chip]
    return next((row for row in (*own, *family) if row.backend == backend), family[0] if family else None)


def prompt_tflops(chip: Gpu, speed: GpuSpeed, *, matrix: bool, has_dot: bool) -> float:
    """TFLOPS that a dense model's prompt reaches."""
    top = peak_tflops(chip, matrix, has_dot=has_dot)
    if speed.share is None or top is None:
        limit = speed.tflops or 1.0
        return min(limit, 0.2 * top) if top is not None else limit
    return speed.share * top


def has_matrix(runtime: Runtime | None) -> bool:
    """Whether it computes with matrix units, as the device reports or the table lists."""
    return runtime is not None and runtime.matrix_units is True


def has_dot(runtime: Runtime | None) -> bool:
    """Whether it computes integer dot products, unless the device reports that it does not."""
    return runtime is None or runtime.int_dot is not False


def peak_tflops(chip: Gpu, matrix: bool, *, has_dot: bool = True) -> float | None:
    """The peak that prompt speeds are a share of, in 10^12 operations per second."""
    if chip.family in DP4A and chip.int8_dp4a_tops is not None:
        return chip.int8_dp4a_tops * (1.0 if has_dot else WITHOUT_INT_DOT)
    if matrix and chip.family in TENSOR_INT8:
        return chip.int8_matrix_tops
    if matrix and chip.fp16_matrix_tflops is not None:
        return chip.fp16_matrix_tflops
    if chip.fp16_tflops is None:
        return None
    return chip.fp16_tflops * (WITHOUT_INT_DOT if chip.int_dot and not has_dot else 1.0)


def bandwidth(device: Device) -> float:
    """GB/s of the memory that the device reads from: reported, else published, else a usual value."""
    if device.memory.bandwidth_gbs:
        return device.memory.bandwidth_gbs
    if device.kind in {"igpu", "dgpu"}:
        return _unknown(device).bandwidth_gbs
    return cpu_kind("other").bandwidth_gbs


def link_gbs(device: Device) -> float:
    """GB/s at which weights in RAM reach the device for a prompt."""
    if device.kind != "dgpu":
        return bandwidth(device) * SHARED_LINK_SHARE
    chip = gpu(device.chip)
    usual = LAPTOP_LINK_GBS if chip is not None and "laptop" in chip.name.lower() else CARD_LINK_GBS
    link = next((float(e.value) for e in device.evidence if e.key == LINK), None)
    return usual if link is None else min(CARD_LINK_GBS, link * LINK_SHARE)


def mixture_speed(device: Device, backend: str) -> MixtureSpeed:
    """Cost of mixtures on a GPU through a backend."""
    rows = (row for row in chip_speeds().mixtures if _is_for(row, device, backend))
    return next(rows)  # the last row matches every device


def slowed(
    seconds: float, depth: float, device: Device, backend: str, architecture: str, *, is_prompt: bool
) -> float:
    """The seconds of a token after `depth` others, for an architecture that this backend computes slowly."""
    chip = gpu(device.chip)
    family = chip.family if chip is not None else ""
    rows = (row for row in chip_speeds().architectures if row.architecture == architecture)
    row = next((row for row in rows if (row.family, row.backend) == (family, backend)), None)
    if row is None:
        return seconds
    factor, growth = (row.prompts, row.prompt_depth_s) if is_prompt else (row.answers, row.answer_depth_s)
    return seconds * factor + depth * growth


def shared_gain(device: Device, backend: str, answers: float, *, experts: bool) -> float:
    """Total tokens/s of that many answers at once, relative to one alone.

    A backend without a row has the gain of another one on the same chip, so that it neither wins nor loses by it.
    """
    chip = gpu(device.chip)
    family = chip.family if chip is not None else ""
    rows = [row for row in chip_speeds().shared if row.experts == experts]
    own = [row for row in rows if row.family == family]
    row = next((row for row in own if row.backend == backend), own[0] if own else None)
    return gain_at((row or next(row for row in rows if row.family == "any")).gains, answers)


def gain_at(gains: Sequence[tuple[int, float]], answers: float) -> float:
    """The gain between the nearest numbers of answers that are known; beyond the last one it stays."""
    least, gain = 1, 1.0
    for count, more in gains:
        if answers <= count:
            return gain + (more - gain) * max(0.0, answers - least) / max(1, count - least)
        least, gain = count, more
    return gain


def type_speed(backend: str, type_name: str) -> float:
    """Prompt speed with weights of this type, relative to the usual types."""
    row = _type_row(backend, type_name)
    return row.prompt if row is not None else 1.0


def unpack_ns(cpu: CpuKind, type_name: str) -> float:
    """Nanoseconds in which one thread unpacks a weight of this type for one token."""
    row = _type_row("cpu", type_name)
    by_rows = cpu.rows_unpack_ns if row is not None and row.by_rows else None
    return by_rows or cpu.unpack_ns or chip_speeds().cpu.unpack_ns


@cache
def _type_row(backend: str, type_name: str) -> TypeSpeed | None:
    rows = (row for row in chip_speeds().types if row.backend == backend and re.fullmatch(row.match, type_name))
    return next(rows, None)


def _is_for(row: MixtureSpeed, device: Device, backend: str) -> bool:
    return all(
        expected in {"any", actual}
        for expected, actual in ((row.vendor, device.vendor), (row.kind, device.kind), (row.backend, backend))
    )


def _unknown(device: Device) -> UnknownSpeed:
    """The usual speeds of a GPU of this kind and memory."""
    size = (device.memory.physical_bytes or 0) / 2**30
    rows = (row for row in chip_speeds().unknown if row.kind == device.kind)
    return next(row for row in rows if row.up_to_gib is None or 0 < size <= row.up_to_gib)


def _unknown_rates(device: Device, runtime: Runtime | None) -> Rates:
    row, gbs = _unknown(device), bandwidth(device)
    reported = None if runtime is None else runtime.matrix_units
    likely = "rtx" in device.name.lower() or (device.memory.physical_bytes or 0) > MATRIX_FROM_BYTES
    is_matrix = reported if reported is not None else device.kind == "dgpu" and likely
    per_byte = row.matrix_flop_per_byte if is_matrix else row.flop_per_byte
    return Rates(gbs=gbs * row.reads, gflops=gbs * per_byte, layer_s=row.layer_ms / 1000)


def most_read(kind: CpuKind, bandwidth_gbs: float) -> float:
    """GB/s that all cores of a CPU read; more for one of no known kind if its memory is wide, as in servers."""
    if kind.match:
        return kind.reads_gbs
    return max(kind.reads_gbs, chip_speeds().cpu.wide_reads * bandwidth_gbs)


def _cpu_rates(device: Device, threads: int | None) -> Rates:
    row: CpuKind = cpu_kind(device.chip or device.name)
    rule = chip_speeds().cpu
    count = threads or (device.cores.threads if device.cores else 1)
    core = rule.core if "avx2" in device.isa else rule.core_plain
    core = rule.core_i8mm if "i8mm" in device.isa else core
    core = rule.slow_core if row.slow_cores else core
    thread_gbs = row.thread_gbs or rule.thread_gbs
    gbs = min(rule.reads * bandwidth(device), most_read(row, bandwidth(device)), thread_gbs * count)
    return Rates(gbs=gbs, gflops=1000 * core * count * row.ghz)

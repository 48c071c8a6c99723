"""Lists where one model could run: on the CPU, on GPUs or through OpenVINO, with memory needs and speeds."""

from collections.abc import Callable
from typing import Final

import msgspec

from devices.backends.cpu_kernels import tiles_library
from devices.backends.libraries import library_folder
from devices.backends.openvino import BACKEND
from devices.fault_rules import Rule, Rules
from devices.memory_ledger import Ledger
from devices.types import Device, Machine, Runtime
from engine.message_catalog.reasons import Reason, because
from engine.placement import cpu_choices as streaming
from engine.placement import openvino
from engine.placement.chip_speeds import bandwidth, rates
from engine.placement.cpu_choices import (
    cpu_kernel_reasons,
    file_weights,
    head_widths,
    heads_of,
    plain_attention,
    plain_attention_reason,
    prompt_tiles,
    tile_attention,
    why_measured,
)
from engine.placement.estimate import gpu_layer_start, kv_layer_bytes, layer_bytes, layer_counts, need_on, overdraft
from engine.placement.history import AttentionSpeed, PlacementHistory, attention_key
from engine.placement.measurements import Speed
from engine.placement.results import machine_key
from engine.placement.shape import ModelShape
from engine.placement.speed import BACKENDS, HOST_UBATCH, Forecast, expected
from engine.placement.types import (
    DryRunner,
    MemoryEstimate,
    PlacementLimits,
    SettingChange,
    Step,
    Streaming,
    changes_between,
    follow,
)
from engine.runner.engine_args import overrides
from engine.runner.protocol import LoadSettings

QUIET_DIVISOR: Final = 2
# Memory of a GPU that its driver and libraries use although it is reported as free. Used when layers are split.
SPLIT_RESERVE_BYTES: Final = 512 << 20


# Factor on a candidate's time of a usual turn, once for a larger ubatch and once for attention of all layers on the
# GPU: both may cost a little there, but gain more on long prompts.
TIE: Final = 0.95
# A smaller ubatch must make a usual turn faster by this factor, so that an uncertain forecast changes nothing.
FASTER_TURN: Final = 0.97
SMALLEST_UBATCH: Final = 128


class PlacementQuery(msgspec.Struct, frozen=True):
    """A model, the settings it would be loaded with, the user's overrides, and the machine with its memory.

    `disk_gbs` is the measured read speed of the model's disk. `rules` are known bad combinations.
    """

    shape: ModelShape
    settings: LoadSettings
    overrides: PlacementLimits
    machine: Machine
    ledger: Ledger
    memory: PlacementHistory
    owner: str
    disk_gbs: float | None = None
    rules: Rules | None = None

    def fits(self, need: MemoryEstimate) -> bool:
        """Whether the ledger would grant this need now."""
        return overdraft(self.ledger, need, self.owner) is None


class Candidate(msgspec.Struct, frozen=True):
    """A place to run, whether the model fits there, and the expected speed.

    `others`: further GPUs in addition to `device`; `attention`: this machine's measurements of fused and plain
    attention; `changes`: what its steps changed, if there was more than one step; `forecast`: the rule for it, by
    which its measurements are stored; None if it is never measured; `fault`: the rule by which it is not used.
    """

    device: Device
    runtime: Runtime | None
    settings: LoadSettings
    need: MemoryEstimate
    fits: bool
    speed: Speed
    others: tuple[Device, ...] = ()
    attention: Reason | None = None
    streaming: Streaming | None = None
    changes: tuple[SettingChange, ...] = ()
    forecast: Forecast | None = None
    fault: Rule | None = None

    @property
    def backend(self) -> str:
        """Name of its backend; `cpu` for the CPU's own kernels."""
        return self.runtime.backend if self.runtime else "cpu"


def is_comparable(candidate: Candidate) -> bool:
    """Whether a short measurement there says how fast answers would be: it fits, and reads no experts from disk."""
    runs = candidate.device.kind == "cpu" or candidate.settings.n_gpu_layers > 0
    return candidate.fits and runs and candidate.streaming is None and candidate.backend != BACKEND


def forecast_for(shape: ModelShape, settings: LoadSettings, machine: Machine) -> Forecast | None:
    """The rule for settings that were already chosen; None if they use several devices or none of this machine."""
    cpu = machine.device("cpu")
    if cpu is None or settings.remotes or len(settings.devices) > 1:
        return None
    if not settings.devices:
        return Forecast(shape, settings, ((cpu, "cpu", 1.0),), None)
    usable = ((d, r) for d in machine.devices for r in d.runtimes if r.device_name == settings.devices[0])
    place = next(((d, r.backend) for d, r in usable if r.backend != BACKEND), None)
    return Forecast(shape, settings, ((*place, 1.0),), cpu) if place is not None else None


def threads(machine: Machine, overrides: PlacementLimits, base: LoadSettings) -> int:
    """One thread per performance core within affinity and quota; half when quiet. A smaller `base` stays."""
    if overrides.n_threads is not None:
        return overrides.n_threads
    cpu = machine.device("cpu")
    count = cpu.cores.threads if cpu and cpu.cores else 1
    if overrides.mode == "quiet" or overrides.on_battery:
        count = max(1, count // QUIET_DIVISOR)
    return min(count, base.n_threads) if base.n_threads else count


def cpu_threads(query: PlacementQuery, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Put all layers on the CPU, with one thread per fast core."""
    count = threads(query.machine, query.overrides, settings)
    changed = msgspec.structs.replace(settings, n_gpu_layers=0, devices=(), n_threads=count, n_threads_batch=count)
    return changed, because("one_thread") if count == 1 else because("threads", threads=count)


def weights_of_the_file(query: PlacementQuery, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Use the file's own weights if a repacked copy is not worth it."""
    isa, speed = query.machine.isa, bandwidth(query.machine.devices[0])
    return file_weights(settings, query.shape, isa, speed) or settings, because("file_weights")


def own_kernels(query: PlacementQuery, settings: LoadSettings) -> tuple[LoadSettings, Reason | None]:
    """Use Tessera's own CPU kernels for prompt products and attention."""
    if tiles_library(library_folder()) is None:
        return settings, None
    isa = query.machine.isa
    changed = prompt_tiles(settings, query.shape, isa) or settings
    changed = tile_attention(changed, query.shape, isa) or changed
    return changed, next(iter(cpu_kernel_reasons(changed)), None)


# Steps that `on_cpu` runs before it checks whether the model fits.
CPU_STEPS: Final[tuple[Step[PlacementQuery], ...]] = (cpu_threads, weights_of_the_file, own_kernels)


def on_cpu(query: PlacementQuery, dry_run: DryRunner) -> Candidate:
    """The CPU, with the fastest kernels for these types and this use, and spare cells if they fit."""
    settings, changes = follow(CPU_STEPS, query, query.settings)
    cpu, shape = query.machine.devices[0], query.shape
    use, measured = query.memory.use(query.owner), attention_speed(query, settings.n_threads)

    def at(tried: LoadSettings, step: str = "", reason: Reason | None = None) -> Candidate:
        need = need_on(shape, tried, query.machine, query.ledger, None, "cpu", dry_run(tried))
        rule = Forecast(shape, tried, ((cpu, "cpu", 1.0),), None)
        speed = expected(rule, query.memory, query.owner)
        attention = why_measured(tried, measured, use)
        more = changes_between(step, settings, tried, reason or attention)
        return Candidate(
            cpu,
            None,
            tried,
            need,
            query.fits(need),
            speed,
            attention=attention,
            changes=(*changes, *more),
            forecast=rule,
        )

    plain = plain_attention(settings, shape, query.machine.isa, use, measured)
    if plain is not None:
        candidate = at(plain, "plain attention", None if measured else plain_attention_reason(plain))
        if candidate.fits:
            return candidate
    usual = at(settings)
    if usual.fits:
        return usual
    if settings.kv_cells <= settings.n_ctx:
        return _streamed(query, at, settings) or usual
    tight = at(msgspec.structs.replace(settings, kv_cells=0), "tight cells", because("spare_cells_fit_not"))
    return tight if tight.fits else _streamed(query, at, settings) or usual


def _streamed(query: PlacementQuery, at: Callable[..., Candidate], settings: LoadSettings) -> Candidate | None:
    """Variant: as many experts in memory as fit, the rest read from disk on demand."""
    least = streaming.streamed_settings(query.shape, settings)
    if least is None or query.machine.system != "linux":
        return None

    def by_use(tried: LoadSettings) -> Candidate:
        return at(tried, "streamed experts", because("experts_too_large"))

    wide = msgspec.structs.replace(least, n_ubatch=least.n_batch)  # one ubatch of a prompt needs nearly all experts
    fitting = next((tried for tried in map(by_use, (wide, least)) if tried.fits), None)
    if fitting is None:
        return None
    free = query.ledger.available("cpu", query.machine, query.owner)
    spare = free - fitting.need.device_bytes("cpu")
    whole = by_use(streaming.with_spare(query.shape, fitting.settings, spare))
    fitting = whole if whole.fits else fitting  # if earlier loads used more than predicted, experts get less
    speed, settings = fitting.speed, fitting.settings
    cost = streaming.forecast(
        query.shape,
        settings.expert_bytes,
        streaming.recorded_use(settings),
        query.disk_gbs or streaming.UNKNOWN_DISK_GBS,
        1 / speed.decode_tok_s if speed.decode_tok_s else 0.0,
        measured=query.disk_gbs is not None,
    )
    prefill = streaming.prompt_tok_s(query.shape, cost, settings.n_ubatch, speed.prefill_tok_s)
    return msgspec.structs.replace(fitting, speed=Speed(prefill, cost.decode_tok_s, speed.measured), streaming=cost)


def attention_speed(query: PlacementQuery, count: int) -> AttentionSpeed | None:
    """Measured cost of fused and plain attention here, with `count` threads and this model's heads."""
    heads = heads_of(query.shape) if query.memory.knows_attention else None
    return query.memory.attention(attention_key(machine_key(query.machine), heads, count)) if heads else None


def on_gpus(query: PlacementQuery) -> list[Candidate]:
    """Every usable GPU through each of its backends, and all discrete GPUs of one backend together."""
    usable = [
        (device, runtime)
        for device in query.machine.devices
        for runtime in device.runtimes
        if device.kind in {"igpu", "dgpu"}
        and runtime.state == "usable"
        and runtime.backend in BACKENDS
        and runtime.backend != BACKEND
    ]
    candidates = [_Offload(query, (pair,)).best() for pair in usable]
    for backend in dict.fromkeys(runtime.backend for _, runtime in usable):
        cards = [pair for pair in usable if pair[0].kind == "dgpu" and pair[1].backend == backend]
        if len({device.id for device, _ in cards}) > 1:
            cards.sort(key=lambda card: -query.ledger.available(card[0].id, query.machine, query.owner))
            candidates.append(_Offload(query, tuple(cards)).best())
    return candidates


class _Offload:
    """One model on one GPU, or its layers split over several GPUs of one backend."""

    def __init__(self, query: PlacementQuery, devices: tuple[tuple[Device, Runtime], ...]) -> None:
        self._query, self._devices = query, devices
        self._gpu, self._runtime = devices[0]
        self._total = len(query.shape.layers) + 1
        free = (query.ledger.available(device.id, query.machine, query.owner) for device, _ in devices)
        self._free = [max(0, num_bytes - SPLIT_RESERVE_BYTES) for num_bytes in free]
        base, count = query.settings, threads(query.machine, query.overrides, query.settings)
        self._base = msgspec.structs.replace(
            base,
            devices=tuple(runtime.device_name for _, runtime in devices),
            n_threads=count,
            n_threads_batch=count,
            n_ubatch=min(BACKENDS[self._runtime.backend].n_ubatch, base.n_batch),
            use_mmap=base.use_mmap and self._gpu.kind != "igpu" and self._runtime.backend != "rocm",
            flash_attn=self._attention(base),
        )

    def _attention(self, base: LoadSettings) -> str:
        """Fused attention if the backend supports all of the model's heads; otherwise llama.cpp decides."""
        if base.flash_attn != "auto":
            return base.flash_attn
        supported = BACKENDS[self._runtime.backend].head_widths
        return "on" if set(head_widths(self._query.shape) or {0}) <= supported else "auto"

    def best(self) -> Candidate:
        """All layers if they fit, else as many as fit, or all with some experts on the CPU, whichever is faster.

        Weights in RAM are copied to the GPU for each ubatch of a prompt. So both are also tried with a larger
        ubatch, whose memory may cost a layer.
        """
        best = self._with_most_layers()
        if best.settings.n_gpu_layers == self._total and best.fits:
            return self._with_best_ubatch(best)
        usual, larger = self._base, min(HOST_UBATCH, self._base.n_batch)
        tried = [best, *self._without_experts()]
        if larger > usual.n_ubatch and any(c.fits for c in tried):
            self._base = msgspec.structs.replace(usual, n_ubatch=larger)
            tried += [self._with_most_layers(), *self._without_experts()]
            self._base = usual

        def order(c: Candidate) -> tuple[bool, float]:
            at = c.settings
            return not c.fits, c.speed.turn_s * TIE ** ((at.n_ubatch == larger) + (at.n_gpu_layers == self._total))

        return min(tried, key=order)

    def _with_best_ubatch(self, usual: Candidate) -> Candidate:
        """The same with a smaller ubatch if this model's usual turns are faster with it, as after long texts."""
        if not rates(self._gpu, self._runtime.backend).prompt_mask_s or len(self._devices) > 1:
            return usual
        sizes = (usual.settings.n_ubatch // 2, usual.settings.n_ubatch // 4)
        smaller = [
            self._candidate(msgspec.structs.replace(usual.settings, n_ubatch=size), fits=True)
            for size in sizes
            if size >= SMALLEST_UBATCH
        ]
        best = min((usual, *smaller), key=lambda c: c.speed.turn_s)
        return best if best.speed.turn_s < FASTER_TURN * usual.speed.turn_s else usual

    def _with_most_layers(self) -> Candidate:
        cells = self._base.kv_cells
        layers, fits = self._most_layers(cells)
        if cells > self._base.n_ctx and (layers, fits) != (self._total, True):
            more = self._most_layers(0)  # layers on the GPU are worth more than spare cells
            if more > (layers, fits):
                cells, (layers, fits) = 0, more
        return self._candidate(self._at(layers, cells), fits=fits)

    def _without_experts(self) -> list[Candidate]:
        cells = self._base.kv_cells
        for size in (cells, 0) if cells > self._base.n_ctx else (cells,):
            cpu_expert_layers = self._fewest_experts(size)
            if cpu_expert_layers is not None:
                return [self._candidate(self._at(self._total, size, cpu_expert_layers), fits=True)]
        return []

    def _at(self, layers: int, cells: int, cpu_expert_layers: int = 0) -> LoadSettings:
        """Settings with this many layers and cells, and this many layers whose experts stay on the CPU."""
        settings = msgspec.structs.replace(
            self._base, n_gpu_layers=layers, kv_cells=cells, cpu_expert_layers=cpu_expert_layers
        )
        if len(self._devices) == 1:
            return settings
        shape = self._query.shape
        sizes = layer_bytes(shape, settings, kv_layer_bytes(shape, settings))
        shares = layer_counts(sizes[gpu_layer_start(shape, layers) :], self._free)
        return msgspec.structs.replace(settings, tensor_split=shares)

    def _need(self, settings: LoadSettings) -> MemoryEstimate:
        query = self._query
        return need_on(query.shape, settings, query.machine, query.ledger, self._gpu.id, self._runtime.backend)

    def _fits(self, settings: LoadSettings) -> bool:
        return self._query.fits(self._need(settings))

    def _most_layers(self, cells: int) -> tuple[int, bool]:
        """The maximum number of layers, and whether they fit."""
        low, high, wished = 0, self._total, self._query.overrides.n_gpu_layers
        if wished is not None:
            low = high = min(high, wished) if wished >= 0 else high
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits(self._at(middle, cells)):
                low = middle
            else:
                high = middle - 1
        return low, self._fits(self._at(low, cells))

    def _fewest_experts(self, cells: int) -> int | None:
        """Number of layers whose experts must stay on the CPU for all layers to fit; None if that does not help."""
        query = self._query
        if not query.shape.experts or query.overrides.n_gpu_layers is not None or overrides(self._base.engine_args):
            return None
        low, high = 1, len(query.shape.layers)
        while low < high:
            middle = (low + high) // 2
            if self._fits(self._at(self._total, cells, middle)):
                high = middle
            else:
                low = middle + 1
        return low if self._fits(self._at(self._total, cells, low)) else None

    def _candidate(self, settings: LoadSettings, *, fits: bool) -> Candidate:
        need, query = self._need(settings), self._query
        device_bytes = [need.device_bytes(device.id) for device, _ in self._devices]
        whole = sum(device_bytes) or 1
        devices = tuple(
            (device, runtime.backend, size / whole)
            for (device, runtime), size in zip(self._devices, device_bytes, strict=True)
        )
        rule = Forecast(query.shape, settings, devices, query.machine.device("cpu"))
        speed = Speed(0.0, 0.0, measured=False)
        if settings.n_gpu_layers:
            speed = expected(rule, query.memory, query.owner)
        others = tuple(device for device, _ in self._devices[1:])
        return Candidate(self._gpu, self._runtime, settings, need, fits, speed, others, forecast=rule)


def through_openvino(query: PlacementQuery) -> list[Candidate]:
    """OpenVINO devices that can run this model: pinned ones, or an NPU by its rule. All layers or none."""
    shape, machine = query.shape, query.machine
    count = threads(machine, query.overrides, query.settings)
    candidates = []
    for device in machine.devices:
        for runtime in device.runtimes:
            if runtime.backend != BACKEND or runtime.state != "usable":
                continue
            if openvino.refusal(shape, query.settings, runtime):
                continue
            settings = openvino.settings_for(query.settings, runtime, device)
            settings = msgspec.structs.replace(settings, n_threads=count, n_threads_batch=count)
            gpu = device.id if device.kind in {"igpu", "dgpu"} else None
            need = need_on(shape, settings, machine, query.ledger, gpu, runtime.backend)
            rule = Forecast(shape, settings, ((device, BACKEND, 1.0),), None)
            speed = expected(rule, query.memory, query.owner)
            candidates.append(Candidate(device, runtime, settings, need, query.fits(need), speed))
    return candidates

"""Choose device, backend, offload and settings for one model: what fits, then the pin, then speed."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from devices.backends.openvino import BACKEND
from devices.memory import Ledger
from devices.types import Device, Machine, Runtime
from engine.dispatch import openvino
from engine.dispatch.attention import LONG_CHATS_WHY, MOST_PARALLEL, PLAIN_WHY, plain_attention
from engine.dispatch.cells import grown, within_reason
from engine.dispatch.guessing import guessing
from engine.dispatch.history import PlacementHistory
from engine.dispatch.npu_rule import expected_power, why_npu
from engine.dispatch.priors import BACKENDS, CPU_EFFICIENCY, NPU_LARGEST_PARAMETERS, bandwidth_gbs, effective_gbs
from engine.dispatch.types import Alternative, Placement, Wish
from engine.fit.context import need_at, resize_context
from engine.fit.report import machine_isa, overdraft
from engine.fit.shape import ModelShape
from engine.fit.types import DryRun, Need
from engine.runner.protocol import LoadSettings

DryRunner = Callable[[LoadSettings], DryRun | None]
# A GPU that is not at least this much faster than the CPU is not worth its driver's risks.
WORTHWHILE_GAIN = 1.1
QUIET_SHARE = 2


@dataclass(frozen=True, slots=True)
class _Candidate:
    device: Device
    runtime: Runtime | None
    settings: LoadSettings
    need: Need
    fits: bool
    decode_tok_s: float
    measured: bool

    @property
    def backend(self) -> str:
        return self.runtime.backend if self.runtime else "cpu"


def place(
    shape: ModelShape,
    base: LoadSettings,
    wish: Wish,
    machine: Machine,
    ledger: Ledger,
    memory: PlacementHistory,
    dry_run: DryRunner = lambda _settings: None,
    owner: str = "",
) -> Placement:
    """Where the model runs. `base` has the path and what the server would use without an opinion of ours.

    A user's pin beats a stored measurement, which beats a prior; what does not fit loses to what does. `dry_run`
    may return None, then formulas are used.
    """

    def choose(settings: LoadSettings) -> tuple[list[_Candidate], bool, _Candidate]:
        found = [_cpu(shape, settings, wish, machine, ledger, memory, dry_run, owner)]
        found += [
            _gpu(shape, settings, wish, device, runtime, machine, ledger, memory, owner)
            for device in machine.devices
            for runtime in device.runtimes
            if device.kind in {"igpu", "dgpu"}
            and runtime.state == "usable"
            and runtime.backend in BACKENDS
            and runtime.backend != BACKEND
        ]
        intel = _openvino(shape, settings, wish, machine, ledger, memory, owner)
        pinned = [c for c in (*found, *intel) if _is_pinned(c, wish.device)]
        saving = [c for c in intel if c.device.kind == "npu" and c.fits] if _npu_wanted(shape, wish) else []
        return [*found, *intel], bool(pinned), _best(pinned or saving or found, found[0])

    use = memory.use(owner)
    wish = grown(wish, use)
    wished = within_reason(wished_settings(base, wish), shape, wish, use)
    ahead = guessing(wished, shape)
    candidates, pinned, chosen = choose(ahead)
    if ahead != wished and not chosen.fits:
        candidates, pinned, chosen = choose(wished)
    reasons = _reasons(chosen, wish, machine, shape, pinned)
    if wish.device and not pinned:
        why = openvino.pin_refused(shape, ahead, machine, wish.device) or "is not usable here"
        reasons = (f"{wish.device} {why}, so another device was chosen", *reasons)
    others = tuple(_alternative(c, chosen, wish) for c in candidates if c is not chosen)
    return Placement(
        device=chosen.device.id,
        device_name=chosen.device.name,
        backend=chosen.backend,
        n_layers=len(shape.layers),
        settings=chosen.settings,
        need=chosen.need,
        fits=chosen.fits,
        decode_tok_s=round(chosen.decode_tok_s, 1) or None,
        basis="measured" if chosen.measured else "prior",
        reasons=reasons,
        alternatives=(*others, *_npus(machine, shape)),
    )


def wished_settings(base: LoadSettings, wish: Wish) -> LoadSettings:
    """`base` with what the user asked for; a shared cache follows context and parallel requests."""
    settings = resize_context(base, wish.n_ctx or base.n_ctx, wish.n_parallel)
    if wish.kv_type and wish.kv_type != "f16":
        return msgspec.structs.replace(settings, type_k=wish.kv_type, type_v=wish.kv_type, flash_attn="on")
    return msgspec.structs.replace(settings, type_k=wish.kv_type or base.type_k, type_v=wish.kv_type or base.type_v)


def threads(machine: Machine, wish: Wish, base: LoadSettings) -> int:
    """One thread a performance core within affinity and quota; half of them when quiet. A smaller `base` stays."""
    if wish.n_threads is not None:
        return wish.n_threads
    cpu = machine.device("cpu")
    count = cpu.cores.threads if cpu and cpu.cores else 1
    if wish.mode == "quiet" or wish.on_battery:
        count = max(1, count // QUIET_SHARE)
    return min(count, base.n_threads) if base.n_threads else count


def bytes_per_token(shape: ModelShape, used_experts_frac: float) -> int:
    """Weights read for one token: of experts only the used ones, of the embedding one row."""
    read = 0.0
    for tensor in shape.tensors:
        if tensor.name.startswith("token_embd") and not shape.tied:
            continue
        read += tensor.nbytes * (used_experts_frac if "_exps" in tensor.name else 1.0)
    return int(read)


def weights_read(shape: ModelShape) -> int:
    """Bytes of weights one token of this model reads."""
    return bytes_per_token(shape, _expert_frac(shape))


def _expert_frac(shape: ModelShape) -> float:
    return min(1.0, shape.experts_used / shape.experts) if shape.experts and shape.experts_used else 1.0


def _speed(
    shape: ModelShape, device: Device, backend: str, memory: PlacementHistory, share: float, cpu: Device | None
) -> tuple[float, bool]:
    """Expected tokens a second with `share` of the weights on the device, and whether that was measured."""
    measured = memory.speed_gbs(device.id, backend)
    gbs = measured or effective_gbs(device, backend)
    total = bytes_per_token(shape, _expert_frac(shape)) / 1e9
    seconds = share * total / gbs
    if share < 1 and cpu is not None:
        slow = memory.speed_gbs("cpu", "cpu") or bandwidth_gbs(cpu)[0] * CPU_EFFICIENCY
        seconds += (1 - share) * total / slow
    return (1 / seconds if seconds else 0.0), measured is not None


def _cpu(
    shape: ModelShape,
    base: LoadSettings,
    wish: Wish,
    machine: Machine,
    ledger: Ledger,
    memory: PlacementHistory,
    dry_run: DryRunner,
    owner: str,
) -> _Candidate:
    count = threads(machine, wish, base)
    settings = msgspec.structs.replace(base, n_gpu_layers=0, devices=(), n_threads=count, n_threads_batch=count)
    cpu = machine.devices[0]
    isa = machine_isa(machine)
    correction = ledger.audits.correction(audit_key(shape, "cpu"))
    tok_s, measured = _speed(shape, cpu, "cpu", memory, 1.0, None)

    def at(tried: LoadSettings) -> _Candidate:
        run = dry_run(tried)
        need = need_at(shape, tried, isa, None, (tried, run) if run else None, correction)
        fits = overdraft(ledger, need, owner) is None
        return _Candidate(cpu, None, tried, need, fits, tok_s, measured)

    plain = plain_attention(settings, shape, isa, memory.use(owner))
    if plain is not None and (candidate := at(plain)).fits:
        return candidate
    usual = at(settings)
    if usual.fits or settings.kv_cells <= settings.n_ctx:
        return usual
    tight = at(msgspec.structs.replace(settings, kv_cells=0))
    return tight if tight.fits else usual


def audit_key(shape: ModelShape, backend: str) -> str:
    """Loads whose predictions err alike."""
    return f"{shape.architecture}|{backend}"


def _gpu(
    shape: ModelShape,
    base: LoadSettings,
    wish: Wish,
    device: Device,
    runtime: Runtime,
    machine: Machine,
    ledger: Ledger,
    memory: PlacementHistory,
    owner: str,
) -> _Candidate:
    """As many layers on the GPU as fit: all of them, or the largest number, or none."""
    count = threads(machine, wish, base)
    prior = BACKENDS[runtime.backend]
    settings = msgspec.structs.replace(
        base,
        devices=(runtime.device_name,),
        n_threads=count,
        n_threads_batch=count,
        n_ubatch=min(prior.n_ubatch, base.n_batch),
        use_mmap=base.use_mmap and device.kind != "igpu",
        flash_attn="on" if base.flash_attn != "off" else "off",
    )
    isa = machine_isa(machine)
    correction = ledger.audits.correction(audit_key(shape, runtime.backend))

    def at(tried: LoadSettings, layers: int) -> tuple[LoadSettings, Need]:
        tried = msgspec.structs.replace(tried, n_gpu_layers=layers)
        return tried, need_at(shape, tried, isa, device.id, None, correction)

    def fits(tried: LoadSettings, layers: int) -> bool:
        return overdraft(ledger, at(tried, layers)[1], owner) is None

    def most(tried: LoadSettings) -> tuple[int, bool]:
        """The most layers, and whether even they fit."""
        low, high = 0, total
        if wish.n_gpu_layers is not None:
            low = high = min(total, wish.n_gpu_layers) if wish.n_gpu_layers >= 0 else total
        while low < high:
            middle = (low + high + 1) // 2
            if fits(tried, middle):
                low = middle
            else:
                high = middle - 1
        return low, fits(tried, low)

    total = len(shape.layers) + 1
    found = most(settings)
    if settings.kv_cells > settings.n_ctx and found != (total, True):
        tight = msgspec.structs.replace(settings, kv_cells=0)  # layers on the GPU are worth more than spare cells
        if (more := most(tight)) > found:
            settings, found = tight, more
    layers, fitting = found
    chosen, need = at(settings, layers)
    share = need.device_bytes(device.id) / max(1, need.total_bytes) if layers < total else 1.0
    tok_s, measured = _speed(shape, device, runtime.backend, memory, share, machine.device("cpu"))
    return _Candidate(device, runtime, chosen, need, fitting, tok_s if layers else 0.0, measured)


def _openvino(
    shape: ModelShape,
    base: LoadSettings,
    wish: Wish,
    machine: Machine,
    ledger: Ledger,
    memory: PlacementHistory,
    owner: str,
) -> list[_Candidate]:
    """OpenVINO's devices that take this model: by a pin, or an NPU by its rule; all layers or none."""
    count = threads(machine, wish, base)
    found = []
    for device in machine.devices:
        for runtime in device.runtimes:
            if runtime.backend != BACKEND or runtime.state != "usable":
                continue
            if openvino.refusal(shape, base, runtime):
                continue
            settings = openvino.settings_for(base, runtime, device)
            settings = msgspec.structs.replace(settings, n_threads=count, n_threads_batch=count)
            gpu = device.id if device.kind in {"igpu", "dgpu"} else None
            correction = ledger.audits.correction(audit_key(shape, runtime.backend))
            need = openvino.need(need_at(shape, settings, machine_isa(machine), gpu, None, correction))
            fits = overdraft(ledger, need, owner) is None
            tok_s, measured = _speed(shape, device, runtime.backend, memory, 1.0, None)
            found.append(_Candidate(device, runtime, settings, need, fits, tok_s, measured))
    return found


def _npu_wanted(shape: ModelShape, wish: Wish) -> bool:
    small = sum(t.num_values for t in shape.tensors) <= NPU_LARGEST_PARAMETERS
    return small and wish.device is None and bool(why_npu(wish, igpu_busy=False, side_work=False))


def _is_pinned(candidate: _Candidate, pin: str | None) -> bool:
    if pin is None:
        return False
    device, backend = candidate.device, candidate.backend
    names = {device.id.lower(), device.kind, backend, f"{device.id}/{backend}".lower()}
    if backend == BACKEND:  # "cpu" and a GPU's name mean llama.cpp's own kernels
        names = {f"{device.id}/{backend}".lower()} | ({device.id.lower(), "npu"} if device.kind == "npu" else set())
    if candidate.runtime:
        names.add(candidate.runtime.device_name.lower())
    return pin.lower() in names


def _best(candidates: list[_Candidate], cpu: _Candidate) -> _Candidate:
    fitting = [c for c in candidates if c.fits] or candidates
    best = max(fitting, key=lambda c: c.decode_tok_s)
    if best.device.kind != "cpu" and cpu in fitting and best.decode_tok_s < WORTHWHILE_GAIN * cpu.decode_tok_s:
        return cpu
    return best


def _reasons(chosen: _Candidate, wish: Wish, machine: Machine, shape: ModelShape, pinned: bool) -> tuple[str, ...]:
    reasons = []
    if pinned:
        reasons.append(f"you pinned {wish.device}")
    if chosen.backend == BACKEND and chosen.runtime:
        reasons += _why_openvino(chosen, chosen.runtime, wish, shape)
    elif chosen.device.kind == "cpu":
        reasons += _why_processor(chosen, machine, pinned=pinned)
    else:
        layers = len(shape.layers)
        on_gpu = min(chosen.settings.n_gpu_layers, layers)
        where = "all layers fit" if on_gpu == layers else f"{on_gpu} of {layers} layers fit"
        reasons += [f"{where} on {chosen.device.name}", f"{chosen.backend}: {BACKENDS[chosen.backend].why}"]
        if chosen.device.kind == "igpu":
            reasons.append("the file is read, not mapped: mapped weights would be held twice in shared memory")
    if chosen.settings.mtp:
        reasons.append("the file's own head guesses ahead where that pays")
    if chosen.measured:
        reasons.append("the speed was measured on this machine")
    if wish.mode == "quiet" or wish.on_battery:
        reasons.append("half the cores stay free: " + ("quiet" if wish.mode == "quiet" else "on battery"))
    if not chosen.fits:
        reasons.append("it does not fit the memory that is free now")
    return tuple(reasons)


def _why_openvino(chosen: _Candidate, runtime: Runtime, wish: Wish, shape: ModelShape) -> list[str]:
    reasons = [f"{runtime.device_name}: {BACKENDS[BACKEND].why}, one request at a time"]
    if chosen.device.kind == "npu":
        why = why_npu(wish, igpu_busy=False, side_work=False)
        reasons += [why] if why else []
        reasons += [
            expected_power(chosen.device.vendor),
            f"a context of {chosen.settings.n_ctx}: it is compiled in",
        ]
    if chosen.device.kind != "cpu":
        reasons.append(openvino.UNTRIED)
    cost = openvino.cost(shape, runtime)
    return [*reasons, cost] if cost else reasons


def _why_processor(chosen: _Candidate, machine: Machine, *, pinned: bool) -> list[str]:
    gpus = [d for d in machine.devices if d.kind in {"igpu", "dgpu"}]
    reasons = []
    if not gpus:
        reasons.append("this machine has no GPU")
    elif not any(d.state == "usable" for d in gpus):
        reasons.append(f"no GPU is usable ({gpus[0].name}: {gpus[0].reason or gpus[0].state})")
    elif not pinned and chosen.fits:
        reasons.append("no GPU here is expected to be faster than the processor")
    count = chosen.settings.n_threads
    reasons.append(f"{count} {'thread' if count == 1 else 'threads'}: one for each fast core that may be used")
    if chosen.settings.flash_attn == "off":
        few = chosen.settings.n_parallel <= MOST_PARALLEL
        reasons.append(PLAIN_WHY if few else f"{PLAIN_WHY}, and {LONG_CHATS_WHY}")
    return reasons


def _alternative(candidate: _Candidate, chosen: _Candidate, wish: Wish) -> Alternative:
    if not candidate.fits:
        reason = "it does not fit there"
    elif candidate.backend == BACKEND and not (wish.device and _is_pinned(chosen, wish.device)):
        reason = f"only where you pin {candidate.settings.devices[0]}"
        reason += ", when quiet or on battery" if candidate.device.kind == "npu" else ""
    elif candidate.device.kind != "cpu" and candidate.settings.n_gpu_layers == 0:
        reason = "not one layer fits there"
    elif wish.device and _is_pinned(chosen, wish.device):
        reason = "you pinned another device"
    else:
        reason = f"expected to be slower ({candidate.decode_tok_s:.1f} tok/s)"
    return Alternative(
        device=candidate.device.id,
        backend=candidate.backend,
        n_gpu_layers=candidate.settings.n_gpu_layers,
        decode_tok_s=round(candidate.decode_tok_s, 1) or None,
        reason=reason,
    )


def _npus(machine: Machine, shape: ModelShape) -> list[Alternative]:
    """NPUs that take no GGUF file as they are, with their reason."""
    parameters = sum(t.num_values for t in shape.tensors)
    small = parameters <= NPU_LARGEST_PARAMETERS
    reason = "it runs ONNX models only; " + (
        "worth it for this size on battery or beside a busy GPU" if small else "too slow for a model of this size"
    )
    return [
        Alternative(device=d.id, backend="onnx", n_gpu_layers=0, decode_tok_s=None, reason=reason)
        for d in machine.devices
        if d.kind == "npu" and not any(r.backend == BACKEND for r in d.runtimes)
    ]

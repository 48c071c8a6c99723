"""Chooses device, backend and settings for one model: first what fits, then the pin, then speed."""

import msgspec

from devices.backends.openvino import BACKEND
from devices.types import Machine, Runtime
from engine.message_catalog.reasons import Reason, because
from engine.placement import cpu_choices, openvino
from engine.placement.candidates import Candidate, PlacementQuery, on_cpu, on_gpus, through_openvino
from engine.placement.chip_speeds import has_matrix
from engine.placement.cpu_choices import cpu_kernel_reasons, plain_attention_reason
from engine.placement.fault_workarounds import fault_reason, refusing
from engine.placement.history import PlacementHistory
from engine.placement.load_settings import ContextChoice
from engine.placement.npu_rule import NpuDecision, Offer, busy_igpu, judge, npu_reason, why_power
from engine.placement.shape import ModelShape
from engine.placement.speed import BACKENDS, NPU_LARGEST_PARAMETERS
from engine.placement.types import Alternative, DryRunner, Placement, PlacementLimits

# Minimum speed-up over the CPU that is worth a GPU driver's risks. Published pairs of small integrated GPUs and
# their CPUs are often a tie, and forecasts are off by a fifth, so unmeasured ones need more.
WORTHWHILE_GAIN = 1.1
WORTHWHILE_INTEGRATED_GAIN = 1.25
# Minimum speed-up over a device that holds all experts: with some in RAM, link and RAM decide too.
WORTHWHILE_SPLIT_GAIN = 1.05
# If several backends drive the same GPUs, the key is not chosen over its value: SYCL is up to three times slower
# than Vulkan with models it has no kernels for (llama.cpp, issues 26010, 22413, 19918), Vulkan up to ten times
# slower than CUDA (issue 21984), and its speed on most chips of NVIDIA is a guess.
BEHIND = {"sycl": "vulkan", "vulkan": "cuda"}


class RankedCandidates(msgspec.Struct, frozen=True):
    """All candidates, the chosen one, whether the user pinned it, and the decision on an NPU.

    `alone`: the one that would be chosen if no two requests ran at once.
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    pinned: bool
    verdict: NpuDecision | None = None
    alone: Candidate | None = None


def choose_candidate(query: PlacementQuery, dry_run: DryRunner) -> RankedCandidates:
    """Choose a candidate: a pin beats a stored measurement, which beats a prior.

    A candidate that does not fit loses to one that does. If `dry_run` returns None, formulas are used.
    """
    candidates = [on_cpu(query, dry_run), *on_gpus(query)]
    candidates = [_judged_by_rules(candidate, query) for candidate in candidates]
    intel = through_openvino(query)
    pinned = [c for c in (*candidates, *intel) if _is_pinned(c, query.overrides.device)]
    pinned = [c for c in pinned if c.fault is None] or pinned
    usable = pinned or [c for c in candidates if c.fault is None]
    usual, alone = _best(usable, candidates[0]), _best(usable, candidates[0], alone=True)
    npu = next((c for c in intel if c.device.kind == "npu" and c.fits), None)
    why = _npu_reason(query)
    verdict = _judged(npu, usual, why, query) if npu is not None and why is not None else None
    chosen = npu if npu is not None and verdict is not None and verdict.take else usual
    return RankedCandidates((*candidates, *intel), chosen, bool(pinned), verdict, alone)


def placement_of(query: PlacementQuery, ranked: RankedCandidates, context: ContextChoice | None) -> Placement:
    """The placement for the chosen candidate, with its reasons and why the others lost."""
    shape, machine, overrides, chosen = query.shape, query.machine, query.overrides, ranked.chosen
    reasons = _reasons(chosen, overrides, machine, shape, ranked.pinned)
    if context is not None:
        reasons = (*reasons, *context.reasons)
    if chosen.backend == BACKEND and chosen.device.kind == "npu":
        npu = _offer(chosen, query.memory, query.owner)
        first = ranked.verdict.reasons if ranked.verdict is not None else (why_power(chosen.device.vendor, npu),)
        reasons = (reasons[0], *first, *reasons[1:])
    if overrides.device and not ranked.pinned:
        why = openvino.pin_refused(shape, query.settings, machine, overrides.device)
        refused = because("pin_refused", device=overrides.device, why=why) if why is not None else None
        reasons = (refused or because("pin_not_usable", device=overrides.device), *reasons)
    if chosen.fault is not None:
        reasons = (*reasons, fault_reason("fault_pinned", chosen.fault, backend=chosen.backend))
    reasons = (*reasons, *_for_several(ranked), *_not_used(ranked))
    fitting = [c for c in ranked.candidates if c.fits]
    others = tuple(
        _alternative(c, chosen, overrides, ranked.verdict, _set_aside(c, fitting))
        for c in ranked.candidates
        if c is not chosen
    )
    return Placement(
        device=chosen.device.id,
        device_name=chosen.device.name,
        backend=chosen.backend,
        n_layers=len(shape.layers),
        settings=chosen.settings,
        need=chosen.need,
        fits=chosen.fits,
        decode_tok_s=round(chosen.speed.decode_tok_s, 1) or None,
        basis="measured" if chosen.speed.measured else "prior",
        streaming=chosen.streaming,
        reasons=reasons,
        alternatives=(*others, *_npus(machine, shape)),
    )


def _judged_by_rules(candidate: Candidate, query: PlacementQuery) -> Candidate:
    if query.rules is None or candidate.device.kind == "cpu":
        return candidate
    fault = refusing(query.rules, query.shape, query.machine, candidate.settings)
    return msgspec.structs.replace(candidate, fault=fault) if fault is not None else candidate


def _npu_reason(query: PlacementQuery) -> Reason | None:
    """Why an NPU should be tried for this model; None if the model is too large or a device is requested."""
    if (
        query.overrides.device is not None
        or sum(t.num_values for t in query.shape.tensors) > NPU_LARGEST_PARAMETERS
    ):
        return None
    busy = busy_igpu(query.machine, query.ledger, query.owner)
    return npu_reason(query.overrides, igpu_busy=busy, side_work=False)


def _judged(npu: Candidate, usual: Candidate, why: Reason, query: PlacementQuery) -> NpuDecision:
    offers = (_offer(c, query.memory, query.owner) for c in (npu, usual))
    return judge(why, npu.device.vendor, *offers)


def _offer(candidate: Candidate, memory: PlacementHistory, owner: str) -> Offer:
    device = candidate.device
    tokens_per_joule = memory.tokens_per_joule(owner, device.id, candidate.backend)
    return Offer(device.name, candidate.speed.prefill_tok_s, tokens_per_joule)


def _is_pinned(candidate: Candidate, pin: str | None) -> bool:
    if pin is None:
        return False
    device, backend = candidate.device, candidate.backend
    names = {device.id.lower(), device.kind, backend, f"{device.id}/{backend}".lower()}
    if backend == BACKEND:  # "cpu" and a GPU's name mean llama.cpp's own kernels
        names = {f"{device.id}/{backend}".lower()} | ({device.id.lower(), "npu"} if device.kind == "npu" else set())
    if candidate.runtime:
        names.add(candidate.runtime.device_name.lower())
    if candidate.others:  # a pin that names one device means only that device
        names = {device.kind, backend}
    return pin.lower() in names


def _best(candidates: list[Candidate], cpu: Candidate, *, alone: bool = False) -> Candidate:
    """The fitting candidate with the shortest usual turn. Several GPUs are used only if one is not enough.

    `alone`: as if no two requests ran at once.
    """

    def turn_s(candidate: Candidate) -> float:
        return candidate.speed.alone_s if alone else candidate.speed.turn_s

    fitting = [c for c in candidates if c.fits] or candidates
    worthy = [c for c in fitting if _set_aside(c, fitting) is None] or fitting
    best = min(worthy, key=lambda c: (turn_s(c) * _split_gain(c), len(c.others), list(BACKENDS).index(c.backend)))
    small = best.device.kind == "igpu" and not best.speed.measured
    gain = WORTHWHILE_INTEGRATED_GAIN if small else WORTHWHILE_GAIN
    if best.device.kind != "cpu" and cpu in fitting and turn_s(best) * gain > turn_s(cpu):
        return cpu
    return best


def _split_gain(candidate: Candidate) -> float:
    return WORTHWHILE_SPLIT_GAIN if candidate.settings.cpu_expert_layers else 1.0


def _for_several(ranked: RankedCandidates) -> tuple[Reason, ...]:
    """Why requests that run at once are faster here, if one alone would be faster elsewhere."""
    chosen, other = ranked.chosen, ranked.alone
    if other is None or other is chosen or chosen.backend == BACKEND:
        return ()
    speed, alone = chosen.speed, other.speed
    reason = because(
        "faster_together",
        answers=speed.answers,
        backend=chosen.backend,
        total_tok_s=speed.total_tok_s,
        prefill_tok_s=speed.prefill_tok_s,
        other=other.backend,
        other_tok_s=alone.total_tok_s,
        other_prefill_tok_s=alone.prefill_tok_s,
    )
    return (reason,)


def _not_used(ranked: RankedCandidates) -> tuple[Reason, ...]:
    """Backends that would fit and are not used because of known faults, each once."""
    refused = {
        (c.fault.id, c.backend): fault_reason("fault_avoided", c.fault, backend=c.backend, device=c.device.name)
        for c in ranked.candidates
        if c.fault is not None and c.fits and c is not ranked.chosen
    }
    return () if ranked.pinned else tuple(refused.values())


def _gpu_ids(candidate: Candidate) -> tuple[str, ...]:
    return candidate.device.id, *(device.id for device in candidate.others)


def _set_aside(candidate: Candidate, others: list[Candidate]) -> Reason | None:
    """Why a forecast alone is not enough to choose this candidate; None if it is.

    An integrated GPU without matrix units does not replace a discrete one: only its memory is larger, and its
    forecasts are the least certain. A backend does not replace another one on the same devices that it is slower
    than (`BEHIND`).
    """
    cards = any(c.device.kind == "dgpu" and c.settings.n_gpu_layers for c in others)
    if cards and candidate.device.kind == "igpu" and not has_matrix(candidate.runtime):
        return because("card_first")
    other = BEHIND.get(candidate.backend)
    on_same_gpus = {c.backend for c in others if _gpu_ids(c) == _gpu_ids(candidate)}
    if candidate.speed.measured or other not in on_same_gpus:
        return None
    return because("behind_other_backend", backend=candidate.backend, other=other)


def _reasons(
    chosen: Candidate, overrides: PlacementLimits, machine: Machine, shape: ModelShape, pinned: bool
) -> tuple[Reason, ...]:
    reasons = [] if chosen.fits else [because("fits_not_now")]
    if pinned and overrides.device:
        reasons.append(because("pinned", device=overrides.device))
    if chosen.backend == BACKEND and chosen.runtime:
        reasons += _openvino_reasons(chosen, chosen.runtime, shape)
    elif chosen.device.kind == "cpu":
        reasons += _cpu_reasons(chosen, machine, pinned=pinned)
    else:
        reasons += _gpu_reasons(chosen, shape)
    if chosen.settings.mtp:
        reasons.append(because("own_head"))
    if chosen.speed.measured:
        reasons.append(because("speed_measured"))
    if overrides.mode == "quiet":
        reasons.append(because("half_the_cores_quiet"))
    elif overrides.on_battery:
        reasons.append(because("half_the_cores_on_battery"))
    return tuple(reasons)


def _gpu_reasons(chosen: Candidate, shape: ModelShape) -> list[Reason]:
    layers, cpu_layers = len(shape.layers), chosen.settings.cpu_expert_layers
    on_gpu = min(chosen.settings.n_gpu_layers, layers)
    names = tuple(device.name for device in (chosen.device, *chosen.others))
    if cpu_layers:
        reasons = [because("layers_fit_without_experts", layers=cpu_layers, all_layers=layers, devices=names)]
        if shape.experts_used:
            reasons.append(because("experts_on_processor", used=shape.experts_used, experts=shape.experts))
        else:
            reasons.append(because("few_experts_on_processor"))
    elif on_gpu == layers:
        reasons = [because("all_layers_fit", devices=names)]
    else:
        reasons = [because("some_layers_fit", layers=on_gpu, all_layers=layers, devices=names)]
    if chosen.others:
        shares = tuple(f"{share:.0f}" for share in chosen.settings.tensor_split)
        reasons.append(because("layers_shared_out", shares=shares))
    reasons.append(because(f"backend_{chosen.backend}"))
    if chosen.device.kind == "igpu":
        reasons.append(because("file_is_read"))
        if shape.experts and not cpu_layers and on_gpu == layers:
            reasons.append(because("experts_in_shared_memory"))
    return reasons


def _openvino_reasons(chosen: Candidate, runtime: Runtime, shape: ModelShape) -> list[Reason]:
    reasons = [because("openvino", device=runtime.device_name)]
    if chosen.device.kind == "npu":
        reasons.append(because("context_compiled_in", n_ctx=chosen.settings.n_ctx))
    if chosen.device.kind != "cpu":
        reasons.append(because("untried_on_this"))
    cost = openvino.cost(shape, runtime)
    return [*reasons, cost] if cost is not None else reasons


def _cpu_reasons(chosen: Candidate, machine: Machine, *, pinned: bool) -> list[Reason]:
    gpus = [d for d in machine.devices if d.kind in {"igpu", "dgpu"}]
    reasons = []
    if not gpus:
        reasons.append(because("no_gpu"))
    elif not any(d.state == "usable" for d in gpus):
        reasons.append(because("no_usable_gpu", device=gpus[0].name, why=gpus[0].reason or gpus[0].state))
    elif not pinned and chosen.fits:
        reasons.append(because("no_faster_gpu"))
    count, engine_args = chosen.settings.n_threads, chosen.settings.engine_args
    reasons.append(because("one_thread") if count == 1 else because("threads", threads=count))
    if chosen.streaming is not None:
        reasons += cpu_choices.reasons(chosen.streaming)
    elif not chosen.settings.repack and engine_args.repack is None:
        reasons.append(because("file_weights"))
    if chosen.settings.tiles and engine_args.tiles is None:
        reasons += cpu_kernel_reasons(chosen.settings)
    if chosen.attention is not None:
        reasons.append(chosen.attention)
    elif chosen.settings.flash_attn == "off":
        reasons.append(plain_attention_reason(chosen.settings))
    return reasons


def _alternative(
    candidate: Candidate,
    chosen: Candidate,
    overrides: PlacementLimits,
    verdict: NpuDecision | None,
    aside: Reason | None,
) -> Alternative:
    pinned = bool(overrides.device) and _is_pinned(chosen, overrides.device)
    speed = candidate.speed
    if not candidate.fits:
        reason = because("fits_not_there")
    elif candidate.backend == BACKEND and not pinned:
        reason = _only_pinned(candidate, verdict)
    elif candidate.fault is not None and not pinned:
        reason = fault_reason("fault_place", candidate.fault)
    elif candidate.device.kind != "cpu" and candidate.settings.n_gpu_layers == 0:
        reason = because("no_layer_fits_there")
    elif pinned:
        reason = because("pinned_elsewhere")
    elif aside is not None:
        reason = aside
    elif speed.answers > 1 and speed.alone_s < chosen.speed.alone_s:
        reason = because(
            "slower_together",
            answers=speed.answers,
            total_tok_s=speed.total_tok_s,
            prefill_tok_s=speed.prefill_tok_s,
        )
    else:
        kind = "slower_here" if speed.measured else "slower"
        reason = because(kind, decode_tok_s=speed.decode_tok_s, prefill_tok_s=speed.prefill_tok_s)
    return Alternative(
        device=candidate.device.id,
        backend=candidate.backend,
        n_gpu_layers=candidate.settings.n_gpu_layers,
        decode_tok_s=round(speed.decode_tok_s, 1) or None,
        reason=reason,
    )


def _only_pinned(candidate: Candidate, verdict: NpuDecision | None) -> Reason:
    """Why an OpenVINO device was not used."""
    device = candidate.settings.devices[0]
    if candidate.device.kind != "npu":
        return because("only_pinned", device=device)
    if verdict is None or verdict.take:
        return because("only_pinned_npu", device=device)
    return because("only_pinned_npu_not_now", device=device, why=verdict.reasons[0])


def _npus(machine: Machine, shape: ModelShape) -> list[Alternative]:
    """NPUs that cannot run GGUF files as they are, with the reason."""
    parameters = sum(t.num_values for t in shape.tensors)
    small = parameters <= NPU_LARGEST_PARAMETERS
    reason = because("npu_onnx_only" if small else "npu_onnx_only_large")
    return [
        Alternative(device=d.id, backend="onnx", n_gpu_layers=0, decode_tok_s=None, reason=reason)
        for d in machine.devices
        if d.kind == "npu" and not any(r.backend == BACKEND for r in d.runtimes)
    ]

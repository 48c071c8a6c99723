"""Obeys the rules of known bad combinations: which places are not used, and which settings others get."""

from collections.abc import Callable
from typing import Final

import msgspec

from devices.fault_rules import Facts, Rule, Rules, Then, engine_builds, gpu_facts, matching, together
from devices.kernel_packs.folder import packs_folder
from devices.kernel_packs.store import PackStore
from devices.llama_cpp_versions.folder import chosen_version
from devices.types import Device, Machine
from engine.message_catalog.reasons import Reason, because
from engine.placement.fallbacks import with_variables, without_flash_attention
from engine.placement.shape import ModelShape
from engine.runner.protocol import LoadSettings

_PLAIN: Final = frozenset({"f16", "bf16", "f32"})


def load_facts(
    rules: Rules, machine: Machine, device: Device, backend: str, shape: ModelShape, settings: LoadSettings
) -> Facts:
    """The facts about a load there."""
    builds = engine_builds(rules, chosen_version(settings.path))
    facts = gpu_facts(machine, device, backend, builds, _toolkit() if backend == "cuda" else {})
    wide = shape.attention // shape.heads if shape.heads else 0
    layers = len(shape.layers)
    partly = settings.n_gpu_layers >= 0 and settings.n_gpu_layers < layers
    on_host = shape.experts > 0 and (settings.cpu_expert_layers > 0 or partly)
    return msgspec.structs.replace(
        facts,
        architecture=shape.architecture,
        tensor_types=tuple(sorted({tensor.ggml_type.name for tensor in shape.tensors})),
        head_size=wide or None,
        file_gib=shape.file_bytes / 2**30,
        tensor_gib=max((tensor.nbytes for tensor in shape.tensors), default=0) / 2**30,
        depth=max(settings.n_ctx, settings.max_ctx),
        ubatch=settings.n_ubatch,
        drafts=settings.max_draft,
        mmap=settings.use_mmap,
        flash=settings.flash_attn != "off",
        quantized_cache=not {settings.type_k, settings.type_v} <= _PLAIN,
        host_experts=on_host,
        checkpoints=settings.max_rollback > 0,
        projector=settings.mmproj_path is not None,
        host_cache=settings.engine_args.kv_offload is False,
        direct_io=False,  # no load asks llama.cpp for it
    )


def _toolkit() -> dict[str, str]:
    """The compiler of the CUDA pack in use, as its manifest says."""
    packs = (pack for pack in PackStore(packs_folder()).active() if pack.manifest.backend == "cuda")
    version = next((pack.manifest.built.get("nvcc") for pack in packs), None)
    return {"nvcc": version} if version else {}


def found_rules(rules: Rules, shape: ModelShape, machine: Machine, settings: LoadSettings) -> tuple[Rule, ...]:
    """The rules that match a load with these settings."""
    names = settings.devices if settings.n_gpu_layers else ()
    places = [
        (device, runtime.backend)
        for name in names
        for device in machine.devices
        for runtime in device.runtimes
        if runtime.device_name == name and device.kind != "remote"
    ]
    if not names:
        places = [(device, "cpu") for device in machine.devices if device.kind == "cpu"]
    rules_found: list[Rule] = []
    for device, backend in places:
        facts = load_facts(rules, machine, device, backend, shape, settings)
        rules_found += [rule for rule in matching(rules.rules, facts) if rule not in rules_found]
    return tuple(rules_found)


def refusing(rules: Rules, shape: ModelShape, machine: Machine, settings: LoadSettings) -> Rule | None:
    """The rule that forbids the place of these settings; None if it may be used."""
    several = len(settings.devices) > 1
    matches = found_rules(rules, shape, machine, settings)
    return next((rule for rule in matches if rule.then.avoid or (rule.then.one_gpu and several)), None)


def not_bad(rules: Rules, shape: ModelShape, machine: Machine) -> Callable[[LoadSettings], bool]:
    """Whether a fallback's settings may be tried."""
    return lambda settings: refusing(rules, shape, machine, settings) is None


def worked_round(then: Then, settings: LoadSettings) -> LoadSettings:
    """The settings with the values that the rules require; stricter ones stay."""
    replace = msgspec.structs.replace
    if then.flash_attn == "off":
        settings = without_flash_attention(settings)
    if then.plain_cache:
        settings = replace(settings, type_k="f16", type_v="f16")
    if then.max_ubatch and not then.depth:
        settings = replace(settings, n_ubatch=min(settings.n_ubatch, then.max_ubatch))
    elif then.max_ubatch:
        settings = replace(settings, deep_from=then.depth, deep_rows=then.max_ubatch)
    if then.min_ubatch:
        size = max(settings.n_ubatch, then.min_ubatch)
        settings = replace(settings, n_ubatch=size, n_batch=max(settings.n_batch, size))
    if then.max_draft is not None:
        settings = replace(settings, max_draft=min(settings.max_draft, then.max_draft))
    settings = replace(settings, variables=with_variables(settings.variables, then.environment))
    return _without_features(then, settings)


def _without_features(then: Then, settings: LoadSettings) -> LoadSettings:
    """The settings without what the rules switch off."""
    replace = msgspec.structs.replace
    if then.checkpoints is False:
        settings = replace(settings, max_rollback=0)
    if then.use_mmap is False:
        settings = replace(settings, use_mmap=False)
    if then.projector == "cpu" and settings.mmproj_path is not None:
        settings = replace(settings, projector_on_cpu=True)
    if then.host_cache is False and settings.engine_args.kv_offload is False:
        settings = replace(settings, engine_args=replace(settings.engine_args, kv_offload=None))
    return settings


def applied(
    rules: Rules, shape: ModelShape, machine: Machine, settings: LoadSettings
) -> tuple[LoadSettings, tuple[Rule, ...]]:
    """The settings after every rule that changes them, and those rules."""
    matches = [rule for rule in found_rules(rules, shape, machine, settings) if _changes(rule, settings)]
    return worked_round(together(matches), settings), tuple(matches)


def _changes(rule: Rule, settings: LoadSettings) -> bool:
    return worked_round(together([rule]), settings) != settings


def fault_reason(kind: str, rule: Rule, **values: str) -> Reason:
    """A reason that names the fault and where it is described."""
    return because(kind, title=rule.title, source=rule.sources[0] if rule.sources else "", **values)

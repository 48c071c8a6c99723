"""Disables a combination of device, driver, kernels and settings that gave wrong answers here."""

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from devices.fault_rules import (
    FOUND,
    Builds,
    Rule,
    Rules,
    Span,
    Then,
    When,
    add_found,
    engine_builds,
    forget_found,
    gpu_facts,
    numbers,
)
from devices.llama_cpp_versions.folder import chosen_version
from devices.types import Device, Machine
from engine.core.json_store import JsonStore
from engine.core.types import DeviceCheck
from engine.message_catalog.reasons import Reason, because
from engine.placement.device_checks import describe
from engine.placement.fallbacks import UNQUANTIZED, as_in_file, without_tiles
from engine.placement.history import FALLBACK_FIELDS
from engine.placement.resources import Resources
from engine.placement.shape import ModelShape
from engine.placement.types import CanaryCounts
from engine.runner.protocol import LoadSettings

OWN_KERNELS: Final = "own-kernels:"
SOURCE: Final = "this computer"


def quarantine(
    resources: Resources,
    model_id: str,
    settings: LoadSettings,
    shape: ModelShape,
    reason: Reason,
    check: DeviceCheck,
    sentence_of: Callable[[Reason], str],
) -> str:
    """Disable these settings; return the name of the rule for that, to pass to `forget`. Blocks.

    `sentence_of` returns the sentence of a reason. On a GPU the chip is not used with this backend, driver, build
    and shape of batch. On the CPU alone, Tessera's own kernels are disabled first, then repacked weights.
    """
    machine = resources.machine.now()
    if not settings.devices:
        changed = without_tiles(settings) if settings.tiles else as_in_file(settings)
        fields = [f for f in FALLBACK_FIELDS if getattr(changed.settings, f) != getattr(settings, f)]
        changes = {field: getattr(changed.settings, field) for field in fields}
        resources.history.remember(model_id, {**resources.history.remembered(model_id), **changes})
        return f"{OWN_KERNELS}{model_id}"
    resources.checks.record(settings, shape, machine, check, sentence_of(reason))
    return disable(resources, machine, settings, shape, sentence_of)


def disable(
    resources: Resources,
    machine: Machine,
    settings: LoadSettings,
    shape: ModelShape,
    sentence_of: Callable[[Reason], str],
) -> str:
    """Disable these settings until driver, kernel or engine change; return the rule's name, empty without a GPU.

    The record of a check is for one start of the computer. A fault that a load does not find must outlast it.
    Raises: OSError.
    """
    rule = found_rule(resources.fault_rules.now(), machine, settings, shape, sentence_of)
    if rule is not None:
        add_found(rule, resources.fault_rules.folder)
    return rule.id if rule is not None else ""


def forget(resources: Resources, rule: str) -> bool:
    """Enable again what this rule disabled; False if there is none. Devices are compared again. Blocks.

    Raises: OSError.
    """
    if rule.startswith(OWN_KERNELS):
        model_id = rule.removeprefix(OWN_KERNELS)
        is_remembered = bool(resources.history.remembered(model_id))
        resources.history.remember(model_id, {})
        return is_remembered
    if not forget_found(rule, resources.fault_rules.folder):
        return False
    resources.checks.forget_wrong()
    return True


class CanaryAccount(CanaryCounts, frozen=True, kw_only=True):
    """Content of the file. `factors`: real divided by expected seconds of a comparison, by model."""

    factors: dict[str, float] = msgspec.field(default_factory=dict)


def canary_account(state: Path | None) -> JsonStore[CanaryAccount]:
    """The stored account of this user; None: in memory only."""
    return JsonStore(state / "canary.json" if state else None, CanaryAccount, CanaryAccount, durable=False)


def found_rule(
    rules: Rules, machine: Machine, settings: LoadSettings, shape: ModelShape, sentence_of: Callable[[Reason], str]
) -> Rule | None:
    """The rule for these settings, which lasts until driver, kernel or engine change; None if no GPU computes."""
    place = _place(machine, settings.devices[0])
    if place is None:
        return None
    device, backend = place
    builds = engine_builds(rules, chosen_version(settings.path))
    facts = gpu_facts(machine, device, backend, builds)
    chip = device.arch or device.pci_id or device.name
    when = When(
        backends=(backend,),
        gpu=re.escape(chip)[:200],
        builds=Builds(first=builds[0], until=builds[1] + 1) if builds else None,
        versions={name: Span(only=(version,)) for name, version in _of_drivers(facts.versions, device).items()},
        architectures=re.escape(shape.architecture),
        ubatch_over=settings.n_ubatch - 1,
        ubatch_to=settings.n_ubatch,
        flash=settings.flash_attn != "off",
        quantized_cache=not {settings.type_k, settings.type_v} <= set(UNQUANTIZED),
    )
    key = hashlib.sha256(msgspec.json.encode(when)).hexdigest()[:12]
    name = f"{FOUND}{key}"
    return Rule(
        id=name,
        title=sentence_of(because("found_here_title", load=describe(settings))),
        effect="wrong answers",
        when=when,
        then=Then(avoid=True, advice=sentence_of(because("found_here_advice", rule=name))),
        sources=(SOURCE,),
    )


def _place(machine: Machine, name: str) -> tuple[Device, str] | None:
    pairs = ((device, runtime) for device in machine.devices for runtime in device.runtimes)
    return next(((d, r.backend) for d, r in pairs if r.device_name == name and d.kind in {"igpu", "dgpu"}), None)


def _of_drivers(versions: Mapping[str, str], device: Device) -> dict[str, str]:
    """The versions that a GPU's results depend on: of its driver, and of the system's kernel."""
    names = {"kernel", "system", "windows_driver", "mesa", "mes", str(device.driver)}
    return {name: value[:64] for name, value in versions.items() if name in names and numbers(value)}

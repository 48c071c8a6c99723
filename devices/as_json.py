"""Machines as JSON for programs, recordings and the management API."""

from typing import Any

import msgspec

from devices.msgspec_lock import learned
from devices.types import BackendReport, Device, Machine


def to_json(value: object) -> Any:
    """Dataclasses as plain JSON values, sets sorted; a device and a machine carry what follows from them too."""
    built = msgspec.to_builtins(value, enc_hook=str, order="deterministic")
    if isinstance(value, Machine):
        built["devices"] = [to_json(device) for device in value.devices]
    if isinstance(value, Device):
        built["isa"] = sorted(value.isa)
        built["memory"]["budget_bytes"] = value.memory.budget_bytes
        if value.cores is not None:
            built["cores"]["threads"] = value.cores.threads
    return built


def backend_reports(value: object) -> tuple[BackendReport, ...]:
    """Backend reports from parsed JSON; what does not have their shape is left out."""
    found = []
    for item in value if isinstance(value, list | tuple) else ():
        try:
            found.append(msgspec.convert(item, learned(BackendReport)))
        except msgspec.ValidationError:
            continue
    return tuple(found)

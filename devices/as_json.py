"""Machines as JSON for programs and recordings."""

from typing import Any

import msgspec

from devices.msgspec_lock import learned
from devices.types import BackendReport


def to_json(value: object) -> Any:
    """Structs as plain JSON values, sets sorted."""
    return msgspec.to_builtins(value, enc_hook=str, order="deterministic")


def backend_reports(value: object) -> tuple[BackendReport, ...]:
    """Backend reports from parsed JSON; what does not have their shape is left out."""
    found = []
    for item in value if isinstance(value, list | tuple) else ():
        try:
            found.append(msgspec.convert(item, learned(BackendReport)))
        except msgspec.ValidationError:
            continue
    return tuple(found)

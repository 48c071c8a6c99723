"""Converts machines to JSON for programs and recordings."""

from typing import Any

import msgspec

from devices.msgspec_lock import learned
from devices.types import BackendReport


def to_json(value: object) -> Any:
    """Structs as plain JSON values, with sorted sets."""
    return msgspec.to_builtins(value, enc_hook=str, order="deterministic")


def backend_reports(value: object) -> tuple[BackendReport, ...]:
    """Backend reports from parsed JSON; entries of another form are skipped."""
    reports = []
    for item in value if isinstance(value, list | tuple) else ():
        try:
            reports.append(msgspec.convert(item, learned(BackendReport)))
        except msgspec.ValidationError:
            continue
    return tuple(reports)

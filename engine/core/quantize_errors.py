"""What the quantizer's errors state, as facts; their words are the engine's."""

from collections.abc import Callable
from typing import Any, Final

from engine.message_catalog.reasons import Reason, because
from quantize import errors


def fact_of(error: errors.QuantizeError) -> Reason | None:
    """The whole error as a kind with values; None where it has only words."""
    for cls in type(error).__mro__:
        if cls in _FACTS:
            return _FACTS[cls](error)
    return None


def why_of(error: errors.QuantizeError) -> str | Reason:
    """What is wrong with a file, without its path: a fact where there is one, else the quantizer's words."""
    if isinstance(error, errors.IncompleteFile):
        return _ends_early(error)
    return str(getattr(error, "reason", error))


def _ends_early(error: errors.IncompleteFile) -> Reason:
    if error.known:
        return because("ends_early", have_bytes=error.have_bytes, needed_bytes=error.needed_bytes)
    return because("ends_in_header", have_bytes=error.have_bytes)


def _bad_file(error: errors.BadFile) -> Reason:
    if error.offset is None:
        return because("bad_file", path=error.path, why=why_of(error))
    return because("bad_file_at", path=error.path, why=why_of(error), offset=error.offset)


_FACTS: Final[dict[type, Callable[[Any], Reason]]] = {
    errors.Unreadable: lambda e: because("unreadable", path=e.path, why=e.reason),
    errors.NotWritable: lambda e: because("cannot_write", path=e.path, why=e.reason),
    errors.SourceChanged: lambda e: because("source_changed", path=e.path),
    errors.DiskFull: lambda e: because(
        "disk_full_at", path=e.path, needed_bytes=e.needed_bytes, free_bytes=e.free_bytes
    ),
    errors.BudgetTooSmall: lambda e: because(
        "budget_too_small", limit_bytes=e.limit_bytes, smallest_bytes=e.smallest_bytes
    ),
    errors.BadFile: _bad_file,
}

"""Translates the reasons and errors of the server for the window, with localized numbers."""

from collections.abc import Sequence
from typing import Any

import msgspec
from PySide6.QtCore import QCoreApplication, QLocale

from app.client import ApiError, ServerUnreachable
from app.error_text import describe
from app.gui import formatted
from devices.msgspec_lock import learned
from engine.api.jobs import Job
from engine.message_catalog import AMOUNTS, Wording
from engine.message_catalog.reasons import Reason

# Error texts of the operating system for files, disks and connections. Source: strerror(3) of glibc.
SYSTEM_TEXTS = frozenset(
    {
        "Permission denied",
        "No such file or directory",
        "No space left on device",
        "Read-only file system",
        "Input/output error",
        "Is a directory",
        "Not a directory",
        "Connection refused",
        "Connection reset by peer",
        "Connection timed out",
        "Network is unreachable",
        "No route to host",
        "Name or service not known",
        "Temporary failure in name resolution",
    }
)


class _Translated(Wording):
    def __init__(self) -> None:
        super().__init__(lambda text: QCoreApplication.translate("reasons", text))

    def amount(self, num_bytes: int, form: str) -> str:
        """Format bytes for display."""
        del form
        return formatted.size(num_bytes)

    def format_field(self, value: Any, format_spec: str) -> str:
        text = super().format_field(value, format_spec)
        if isinstance(value, str) and value in SYSTEM_TEXTS:
            return QCoreApplication.translate("reasons", value)
        if not isinstance(value, int | float) or format_spec in AMOUNTS:
            return text
        if text.endswith("%"):
            text = f"{text[:-1]}\u00a0%"  # as everywhere in the window
        locale = QLocale()
        return text.translate({ord("."): locale.decimalPoint(), ord(","): locale.groupSeparator()})


_TRANSLATED = _Translated()


def translated(reason: object, english: str) -> str:
    """The translated sentence of a reason (also in JSON form), or `english` if its kind is unknown."""
    try:
        return _TRANSLATED.sentence(msgspec.convert(reason, learned(Reason)))
    except (LookupError, TypeError, ValueError):
        return english


def all_translated(reasons: Sequence[Reason], english: Sequence[str]) -> list[str]:
    """Translate several reasons. Returns `english` if the server is too old to send them as facts."""
    if len(reasons) != len(english):
        return list(english)
    return [translated(*both) for both in zip(reasons, english, strict=True)]


# Server errors in the window's language.


def error_message(error: BaseException) -> str:
    """Error and next step, for a banner."""
    if isinstance(error, ServerUnreachable):
        return QCoreApplication.translate(
            "api", "The server does not answer. It may be starting; if not, start it on the Server page."
        )
    facts = error.facts if isinstance(error, ApiError) else {}
    return formatted.sentence(translated(facts.get("detail"), describe(error)))


def failure_of(job: Job) -> str:
    """Why a job failed or paused, for a banner or its card. Empty if there is no reason."""
    if job.error is None:
        return ""
    return formatted.sentence(translated(job.error.facts.get("detail"), job.error.message))

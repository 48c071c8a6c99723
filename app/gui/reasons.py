"""Translates the reasons and errors of the server for the window, with localized numbers."""

import re
from dataclasses import replace
from typing import Any

import msgspec
from PySide6.QtCore import QCoreApplication, QLocale

from app.attachments import DocumentError
from app.client import ApiError, ServerUnreachable
from app.error_text import describe
from app.gui import formatted
from devices.msgspec_lock import learned
from engine.api.jobs import Job
from engine.message_catalog import AMOUNTS, Wording
from engine.message_catalog.documents import UNREADABLE_DOCUMENTS
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

    def sentence(self, reason: Reason) -> str:
        """The sentence of a reason; titles of Tessera's own fault rules are translated too."""
        if isinstance(title := reason.values.get("title"), str):
            values = {**reason.values, "title": QCoreApplication.translate("faults", title)}
            reason = replace(reason, values=values)
        return super().sentence(reason)

    def amount(self, num_bytes: int, form: str) -> str:
        """Format bytes for display."""
        del form
        return formatted.size(num_bytes)

    def format_field(self, value: Any, format_spec: str) -> str:
        text = super().format_field(value, format_spec)
        if isinstance(value, str):
            return _known_text(text)
        if not isinstance(value, int | float) or format_spec in AMOUNTS:
            return text
        if text.endswith("%"):
            text = f"{text[:-1]}\u00a0%"  # as everywhere in the window
        locale = QLocale()
        return text.translate({ord("."): locale.decimalPoint(), ord(","): locale.groupSeparator()})


def _known_text(text: str) -> str:
    """Translate a text of the operating system or a document reader, and keep its numbers."""
    if text in SYSTEM_TEXTS:
        return QCoreApplication.translate("reasons", text)
    for template, pattern in _DOCUMENT_TEXTS.items():
        if match := pattern.fullmatch(text):
            values = {name: _known_text(value) for name, value in match.groupdict().items()}
            return QCoreApplication.translate("reasons", template).format(**values)
    return text


_DOCUMENT_TEXTS = {
    template: re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(template)))
    for template in UNREADABLE_DOCUMENTS
}
_TRANSLATED = _Translated()


def translated(reason: object, english: str = "") -> str:
    """The translated sentence of a reason (also in JSON form); `english` if its kind is unknown."""
    try:
        return formatted.without_ticks(_TRANSLATED.sentence(msgspec.convert(reason, learned(Reason))))
    except (LookupError, TypeError, ValueError):
        return formatted.without_ticks(english)


def exact(text: Reason | str) -> str:
    """The translated sentence of a reason with its values as they are, or the text itself."""
    return _TRANSLATED.sentence(text) if isinstance(text, Reason) else text


# Server errors in the window's language.


def error_message(error: BaseException) -> str:
    """Error and next step, for a banner."""
    if isinstance(error, ServerUnreachable):
        return QCoreApplication.translate(
            "api", "The server does not answer. It may be starting; if not, start it on the Server page."
        )
    if isinstance(error, DocumentError):
        words = QCoreApplication.translate("reasons", "{name} cannot be attached: {why}")
        return formatted.sentence(words.format(name=error.name, why=_known_text(error.reason)))
    facts = error.facts if isinstance(error, ApiError) else {}
    return formatted.sentence(translated(facts.get("detail"), describe(error)))


def answer_awaited() -> str:
    """Why a page shows nothing yet."""
    return QCoreApplication.translate("reasons", "This appears as soon as the server answers.")


def failure_of(job: Job) -> str:
    """Why a job failed or paused, for a banner or its card. Empty if there is no reason."""
    if job.error is None:
        return ""
    return formatted.sentence(translated(job.error.facts.get("detail"), job.error.message))

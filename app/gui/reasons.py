"""Translates the reasons and errors of the server for the window, with localized numbers."""

import json
import re
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import msgspec
from PySide6.QtCore import QCoreApplication, QLocale

from app.attachments import DocumentError
from app.client import ApiError, ServerUnreachable
from app.error_text import describe
from app.gui import formatted
from app.gui.theme import ASSETS
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
_FIELD = re.compile(r"\\?\{(\w+)\\?\}")  # of a template, or of its escaped form
_LONGEST_TEXT = 1000
# Texts that reach the window as English sentences, because a model, a terminal or an index reads them too: problems
# of edits, files, imports, MCP servers, settings, devices and documents. The keys are templates with named fields.
PLAIN_TEXTS = ASSETS / "languages" / "de.plain.json"


class _Tokens(int):
    """A number of tokens, shown in groups of digits."""

    def __format__(self, format_spec: str) -> str:
        return int.__format__(self, format_spec or ",")


class _Translated(Wording):
    def __init__(self) -> None:
        super().__init__(lambda text: QCoreApplication.translate("reasons", text))

    def sentence(self, reason: Reason) -> str:
        """The sentence of a reason; titles of Tessera's own fault rules are translated too."""
        values: dict[str, Any] = dict(reason.values)
        if isinstance(title := values.get("title"), str):
            values["title"] = QCoreApplication.translate("faults", title)
        for name, value in values.items():
            if type(value) is int and (name.endswith("tokens") or name == "budget"):
                values[name] = _Tokens(value)
        return super().sentence(replace(reason, values=values))

    def amount(self, num_bytes: int, form: str) -> str:
        """Format bytes for display."""
        del form
        return formatted.size(num_bytes)

    def format_field(self, value: Any, format_spec: str) -> str:
        text = super().format_field(value, format_spec)
        if isinstance(value, str):
            return known_text(text)
        if not isinstance(value, int | float) or format_spec in AMOUNTS:
            return text
        if text.endswith("%"):
            text = f"{text[:-1]}\u00a0%"  # as everywhere in the window
        locale = QLocale()
        return text.translate({ord("."): locale.decimalPoint(), ord(","): locale.groupSeparator()})


def known_text(text: str) -> str:
    """Translate a text of Tessera or the operating system that came without its fact, and keep its numbers."""
    template, values = _template_of(text)
    if not template:
        return text
    fields = {name: known_text(value) for name, value in values.items()}
    return QCoreApplication.translate("reasons", template).format(**fields)


@lru_cache(maxsize=2048)  # pages format the same texts again at every refresh
def _template_of(text: str) -> tuple[str, dict[str, str]]:
    """The template of a text, and the values of its fields. Both are empty if there is none."""
    if text in SYSTEM_TEXTS:
        return text, {}
    if len(text) > _LONGEST_TEXT:
        return "", {}
    for template, pattern in templates():
        if match := pattern.fullmatch(text):
            return template, match.groupdict()
    return "", {}


@cache  # not at import: compiling takes a part of the time until the window appears
def templates() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Every template of a plain text with its pattern, the one with the most words of its own first."""
    texts: dict[str, str] = json.loads(PLAIN_TEXTS.read_text("utf-8"))
    ordered = sorted(texts, key=lambda text: -len(_FIELD.sub("", text)))
    return tuple((text, re.compile(_FIELD.sub(r"(?P<\1>.+?)", re.escape(text)), re.DOTALL)) for text in ordered)


_TRANSLATED = _Translated()


def translated(reason: object, english: str = "") -> str:
    """The translated sentence of a reason (also in JSON form); `english` if its kind is unknown."""
    try:
        return formatted.without_ticks(_TRANSLATED.sentence(msgspec.convert(reason, learned(Reason))))
    except (LookupError, TypeError, ValueError):
        return formatted.without_ticks(known_text(english))


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
        return formatted.sentence(words.format(name=error.name, why=known_text(error.reason)))
    detail = error.facts.get("detail") if isinstance(error, ApiError) else next(iter(error.args), None)
    return formatted.sentence(translated(detail, describe(error)))


def answer_awaited() -> str:
    """Why a page shows nothing yet."""
    return QCoreApplication.translate("reasons", "This appears as soon as the server answers.")


def failure_of(job: Job) -> str:
    """Why a job failed or paused, for a banner or its card. Empty if there is no reason."""
    if job.error is None:
        return ""
    return formatted.sentence(translated(job.error.facts.get("detail"), job.error.message))

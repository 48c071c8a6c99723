"""Formats numbers, sizes, dates and durations for the current language."""

import re

from PySide6.QtCore import QCoreApplication, QDate, QDateTime, QLocale, Qt

from app import format as plain

_EXACT_BELOW = 10
UNKNOWN = "—"  # shown for an unknown number
_QUANTIZED = re.compile(r"(?i)([-_.](gguf|i?q\d\w*|f16|bf16|f32|mxfp4))+$")
_OVERRIDES = dict.fromkeys(map(ord, "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"), "�")
_CODE = re.compile(r"`([^`\n]+)`")
_WORD = re.compile(r"[a-z]+(?=[\s,;:.!?]|$)(?![.:]\S)")  # not a file name or an address
_WEEKDAY = re.compile(r"^dddd?,?\s+|,?\s*dddd?$")
_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def size(num_bytes: float) -> str:
    """Format bytes, for example "5.5 GiB"."""
    return plain.size(num_bytes, decimal, _tr)


def count(value: float) -> str:
    """Format a count of parameters or downloads, for example "8.2 B" or "350 M"."""
    for scale, name in _SCALES:
        if value >= scale:
            return f"{QLocale().toString(value / scale, 'g', 3)} {name}"
    return QLocale().toString(int(value))


def whole(value: float) -> str:
    """Format an integer, for example "32,768"."""
    return QLocale().toString(round(value))


def decimal(value: float, places: int = 1) -> str:
    """Format a decimal number, for example "4.25"."""
    return QLocale().toString(float(value), "f", places)


def speed(tok_s: float) -> str:
    """Format tokens per second, for example "0.8", "3.4" or "120". Decimals only below 10."""
    return decimal(tok_s) if tok_s < _EXACT_BELOW else whole(tok_s)


def model_name(repo: str) -> str:
    """Model name without format suffixes: `Qwen2.5-Coder-7B` for `ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF`."""
    return _QUANTIZED.sub("", repo.rpartition("/")[2])


def without_overrides(text: str) -> str:
    """Replace characters that change the direction of text: a name could hide its ending with them."""
    return text.translate(_OVERRIDES)


def plain_tip(text: str) -> str:
    """A tooltip that stays text. Qt shows what looks like HTML as HTML, and loads the pictures that it names."""
    return without_overrides(text).replace("<", "<\u2060").replace("&lt;", "&\u2060lt;")


def without_ticks(text: str) -> str:
    """Show code between backticks in the quotation marks of the window's language, for example “tessera doctor”."""
    return _CODE.sub(lambda match: QLocale().quoteString(match[1]), text)


def sentence(text: str) -> str:
    """Turn a message of a server or library into a sentence: first letter upper case, end mark.

    Names stay unchanged.
    """
    text = text.strip()
    if _WORD.match(text):
        text = text[0].upper() + text[1:]
    return text if not text or text[-1] in ".!?…:)" else f"{text}."


def files(number: int) -> str:
    """Format a number of files, for example "12 files"."""
    return _tr("1 file") if number == 1 else _tr("{n} files").format(n=whole(number))


def sessions(number: int) -> str:
    """Format a number of sessions, for example "12 sessions"."""
    return _tr("1 session") if number == 1 else _tr("{n} sessions").format(n=whole(number))


def requests(number: int) -> str:
    """Format a number of requests, for example "12 requests"."""
    return _tr("1 request") if number == 1 else _tr("{n} requests").format(n=whole(number))


def versions(number: int) -> str:
    """Format a number of versions, for example "12 versions"."""
    return _tr("1 version") if number == 1 else _tr("{n} versions").format(n=whole(number))


def documents(number: int) -> str:
    """Format a number of documents, for example "12 documents"."""
    return _tr("1 document") if number == 1 else _tr("{n} documents").format(n=whole(number))


def pages(number: int) -> str:
    """Format a number of pages, for example "12 pages"."""
    return _tr("1 page") if number == 1 else _tr("{n} pages").format(n=whole(number))


def threads(number: int) -> str:
    """Format a number of threads, for example "12 threads"."""
    return _tr("1 thread") if number == 1 else _tr("{n} threads").format(n=whole(number))


def duration(seconds: float | None) -> str:
    """Format a duration, for example "40 s", "3 min" or "1 h 20 min"."""
    return plain.duration(seconds, decimal, _tr)


def day(iso: str) -> str:
    """Format an ISO date such as 2026-05-01T10:00:00+00:00. Empty if it is not a date."""
    return date(QDate.fromString(iso[:10], Qt.DateFormat.ISODate))


def date(day: QDate) -> str:
    """Format a date in the language's long form without the weekday, for example "1 May 2026"."""
    form = _WEEKDAY.sub("", QLocale().dateFormat(QLocale.FormatType.LongFormat))
    return QLocale().toString(day, form)


def moment(seconds: float) -> str:
    """Format a Unix time as local date and time, for example "1 May 2026, 14:05"."""
    at = QDateTime.fromSecsSinceEpoch(int(seconds))
    return f"{date(at.date())}, {QLocale().toString(at.time(), 'HH:mm')}"


JOBS = {
    "tiny": "small and quick",
    "chat": "chat",
    "coding": "coding",
    "fim": "code completion",
    "edit": "next edits of code",
    "embedding": "embeddings",
    "rerank": "reranking",
    "vision": "vision",
}


def job(name: str) -> str:
    """The purpose of a recommended model."""
    return _tr(JOBS.get(name, name))


_SOURCES = {
    "user": "Your setting for this model",
    "file": "The model's file",
    "generation_config": "The publisher's settings",
    "model_card": "The model's card",
    "llama.cpp": "llama.cpp's default",
}


def source(name: str) -> str:
    """The origin of a sampling value."""
    return QCoreApplication.translate("sampling", _SOURCES.get(name, "Off"))


def _tr(text: str) -> str:
    return QCoreApplication.translate("words", text)

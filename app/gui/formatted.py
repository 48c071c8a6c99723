"""Numbers as people read them, in the language in force."""

import re

from PySide6.QtCore import QCoreApplication, QDate, QDateTime, QLocale, Qt

from app import format as plain

_EXACT_BELOW = 10
UNKNOWN = "—"  # a number nobody has
_QUANTIZED = re.compile(r"(?i)([-_.](gguf|i?q\d\w*|f16|bf16|f32|mxfp4))+$")
_WORD = re.compile(r"[a-z]+(?=[\s,;:.!?]|$)(?![.:]\S)")  # no name of a file, no address
_WEEKDAY = re.compile(r"^dddd?,?\s+|,?\s*dddd?$")
_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def size(num_bytes: float) -> str:
    """5.5 GiB."""
    return plain.size(num_bytes, decimal, _tr)


def count(value: float) -> str:
    """8.2 B, 350 M: parameters, downloads."""
    for scale, name in _SCALES:
        if value >= scale:
            return f"{QLocale().toString(value / scale, 'g', 3)} {name}"
    return QLocale().toString(int(value))


def whole(value: float) -> str:
    """32,768."""
    return QLocale().toString(round(value))


def decimal(value: float, places: int = 1) -> str:
    """4.25."""
    return QLocale().toString(float(value), "f", places)


def speed(tok_s: float) -> str:
    """0.8, 3.4, 120: a decimal only where it says something."""
    return decimal(tok_s) if tok_s < _EXACT_BELOW else whole(tok_s)


def model_name(repo: str) -> str:
    """`Qwen2.5-Coder-7B` of `ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF`: which file is fetched is told beside it."""
    return _QUANTIZED.sub("", repo.rpartition("/")[2])


def sentence(text: str) -> str:
    """What a server or a library said, as a sentence: a capital first and an end; names stay as they are."""
    text = text.strip()
    if _WORD.match(text):
        text = text[0].upper() + text[1:]
    return text if not text or text[-1] in ".!?…:)" else f"{text}."


def files(number: int) -> str:
    """1 file, 12 files."""
    return _tr("1 file") if number == 1 else _tr("{n} files").format(n=whole(number))


def versions(number: int) -> str:
    """1 version, 12 versions."""
    return _tr("1 version") if number == 1 else _tr("{n} versions").format(n=whole(number))


def documents(number: int) -> str:
    """1 document, 12 documents."""
    return _tr("1 document") if number == 1 else _tr("{n} documents").format(n=whole(number))


def pages(number: int) -> str:
    """1 page, 12 pages."""
    return _tr("1 page") if number == 1 else _tr("{n} pages").format(n=whole(number))


def duration(seconds: float | None) -> str:
    """40 s, 3 min, 1 h 20 min."""
    return plain.duration(seconds, decimal, _tr)


def day(iso: str) -> str:
    """2026-05-01T10:00:00+00:00 as a date of this language; empty where it is none."""
    return date(QDate.fromString(iso[:10], Qt.DateFormat.ISODate))


def date(day: QDate) -> str:
    """1 May 2026, 1. Mai 2026: the long form of the language without the day of the week."""
    form = _WEEKDAY.sub("", QLocale().dateFormat(QLocale.FormatType.LongFormat))
    return QLocale().toString(day, form)


def moment(seconds: float) -> str:
    """1 May 2026, 14:05: a time since 1970 on this computer's clock."""
    at = QDateTime.fromSecsSinceEpoch(int(seconds))
    return f"{date(at.date())}, {QLocale().toString(at.time(), 'HH:mm')}"


JOBS = {
    "tiny": "small and quick",
    "chat": "chat",
    "coding": "coding",
    "fim": "code completion",
    "embedding": "embeddings",
    "vision": "vision",
}


def job(name: str) -> str:
    """What a starter is for."""
    return _tr(JOBS.get(name, name))


_SOURCES = {
    "user": "Your setting for this model",
    "file": "The model's file",
    "generation_config": "The publisher's settings",
    "model_card": "The model's card",
    "llama.cpp": "llama.cpp's default",
}


def source(name: str) -> str:
    """Who decided a value of sampling."""
    return QCoreApplication.translate("sampling", _SOURCES.get(name, "Off"))


def _tr(text: str) -> str:
    return QCoreApplication.translate("words", text)

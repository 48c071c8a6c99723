"""Numbers as people read them, in the language in force."""

from PySide6.QtCore import QCoreApplication, QLocale

_MINUTE, _HOUR = 60, 3600
_EXACT_BELOW = 10
UNKNOWN = "—"  # a number nobody has
_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))


def size(num_bytes: float) -> str:
    """5.5 GiB."""
    return QLocale().formattedDataSize(int(num_bytes), 1, QLocale.DataSizeFormat.DataSizeIecFormat)


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


def duration(seconds: float | None) -> str:
    """40 s, 3 min, 1 h 20 min."""
    if seconds is None:
        return ""
    if seconds < _MINUTE:
        return _tr("{n} s").format(n=whole(max(seconds, 1)))
    if seconds < _HOUR:
        return _tr("{n} min").format(n=whole(seconds / _MINUTE))
    return _tr("{h} h {m} min").format(h=whole(seconds // _HOUR), m=whole(seconds % _HOUR / _MINUTE))


def _tr(text: str) -> str:
    return QCoreApplication.translate("words", text)

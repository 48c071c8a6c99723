"""Format sizes and times for people, in the same way for the terminal and the window.

`number` formats a number with the given decimals and `tr` translates; the window passes its own functions.
"""

from collections.abc import Callable

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_MINUTE_S, _HOUR_MIN = 60, 60
TENTHS_BELOW = 100

Number = Callable[[float, int], str]
Translate = Callable[[str], str]


def plain(value: float, places: int) -> str:
    """Format a number without localization."""
    return f"{value:.{places}f}"


def as_it_is(text: str) -> str:
    """Return `text` untranslated."""
    return text


def size(num_bytes: float | None, number: Number = plain, tr: Translate = as_it_is) -> str:
    """Format bytes in binary units, with one decimal for small values: `7.4 GiB`, `512 MiB`; `unknown` for None."""
    if num_bytes is None:
        return tr("unknown")
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(num_bytes) >= unit:
            value = num_bytes / unit
            return f"{number(value, 1 if value < TENTHS_BELOW and unit != KIB else 0)} {name}"
    return f"{number(num_bytes, 0)} B"


def counted(number: int, noun: str) -> str:
    """A number with an English noun: `1 page`, `2 pages`. For the terminal; the window translates whole texts."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float | None, number: Number = plain, tr: Translate = as_it_is) -> str:
    """Format a duration: `40 s`, `3 min`, `1 h 20 min`; empty for None."""
    if seconds is None:
        return ""
    whole, minutes = max(round(seconds), 1), round(seconds / 60)
    if whole < _MINUTE_S:
        return tr("{n} s").format(n=number(whole, 0))
    if minutes < _HOUR_MIN:
        return tr("{n} min").format(n=number(minutes, 0))
    return tr("{h} h {m} min").format(h=number(minutes // 60, 0), m=number(minutes % 60, 0))


def parameters(count: int) -> str:
    """Format a parameter count: `8.2 B`, `350 M`, or `?`."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return str(count or "?")


def setting(value: object) -> str:
    """Format a setting as in llama.cpp's flags."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "on", False: "off", None: "none"}[value]
    return str(value) or "none"

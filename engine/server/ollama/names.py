"""Names and durations as Ollama's clients write them."""

import re
from typing import Final

from engine.errors import InputFault
from engine.pool import LoadedModel

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Nanoseconds: the unit of every duration in Ollama's answers.
NANO: Final = 1_000_000_000


def plain(name: str) -> str:
    """The name without the tag that clients add to names that have none."""
    return name.removesuffix(":latest")


def seconds(duration: str | float, param: str) -> float:
    """A duration such as `5m`, `1h30m`, `300` or -1 (for ever), in seconds.

    Raises: InputFault: it is none.
    """
    if not isinstance(duration, str):
        return float(duration)
    text = duration.strip()
    negative, digits = text.startswith("-"), text.lstrip("-")
    if re.fullmatch(r"\d+(?:\.\d+)?", digits):
        total = float(digits)
    else:
        found = _DURATION.findall(digits)
        if not found or "".join(a + b for a, b in found) != digits:
            raise InputFault(f"{param} {duration!r} is no duration such as 5m or 300.", param)
        total = sum(float(number) * _SECONDS[unit] for number, unit in found)
    return -total if negative else total


def keep(model: LoadedModel, keep_alive: str | float | None) -> bool:
    """Apply `keep_alive`; True when the model is to be unloaded right after this request."""
    if keep_alive is None:
        return False
    wanted = seconds(keep_alive, "keep_alive")
    if wanted == 0:
        return True
    model.ttl_s = None if wanted < 0 else wanted
    return False

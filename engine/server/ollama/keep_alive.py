"""`keep_alive`: the time that a model stays loaded, in Ollama's duration format."""

import re
import time
from typing import Final

from engine.core.errors import InputFault
from engine.pool.loaded_model import LoadedModel
from engine.server.ollama.schemas import ModelRequest
from engine.server.state import ServerState

_DURATION: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Nanoseconds per second; Ollama's responses give all durations in nanoseconds.
NANO: Final = 1_000_000_000
# Longer durations mean "forever": later dates cannot be represented.
FOREVER_S: Final = 100 * 365 * 86_400.0


def seconds(duration: str | float, param: str) -> float:
    """A duration such as `5m`, `1h30m`, `300` or -1 (forever), in seconds.

    Raises: InputFault: it is not a duration.
    """
    if not isinstance(duration, str):
        return float(max(-FOREVER_S, min(FOREVER_S, duration)))
    text = duration.strip()
    negative, digits = text.startswith("-"), text[text[:1] in ("-", "+") :]
    if re.fullmatch(r"\d+\.?\d*|\.\d+", digits):
        total = float(digits)
    else:
        parts = _DURATION.findall(digits)
        if not parts or "".join(a + b for a, b in parts) != digits:
            raise InputFault(f"{param} {duration!r} is not a duration such as 5m or 300.", param)
        total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return -total if negative else total


def keep(model: LoadedModel, keep_alive: str | float | None) -> bool:
    """Apply `keep_alive`; return True if the model should be unloaded after this request."""
    if keep_alive is None:
        return False
    ttl_s = seconds(keep_alive, "keep_alive")
    if ttl_s == 0:
        return True
    model.ttl_s = None if ttl_s < 0 or ttl_s >= FOREVER_S else ttl_s
    return False


async def acquire(state: ServerState, body: ModelRequest) -> tuple[LoadedModel, float]:
    """The request's model with at least the requested context, and the load time in seconds."""
    started_at = time.monotonic()
    model = await state.pool.acquire(body.model, min_ctx=body.settings.num_ctx or 0)
    return model, time.monotonic() - started_at

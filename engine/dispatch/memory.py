"""What was learnt on this machine: measured decode speeds, and settings that worked after others failed."""

import contextlib
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any, Final

import msgspec

log = logging.getLogger(__name__)
KEPT: Final = 500
# A model's use is that of its newest tokens, this many of them: habits change.
USE_TOKENS: Final = 20_000
# Answers between two writes of what they taught.
SAVE_EVERY: Final = 16


class Use(msgspec.Struct, frozen=True):
    """How a model was used: means over the `tokens` it generated.

    `depth` is how many tokens stood before each, `at_once` how many requests ran when its answer ended.
    """

    tokens: float
    depth: float
    at_once: float


class DispatchMemory:
    """A small JSON file of `speeds`, `ladders`, `pins` and `uses`.

    `speeds`: device|backend → GB/s read while decoding. `ladders`: model → settings. `pins`: model → device, or
    device/backend, that the user chose for it. `uses`: model → tokens, depth and requests at once.

    Keys carry what the value depends on, so an update of a driver or a file simply asks anew.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._speeds, self._ladders, self._pins, self._uses = _read(path)
        self._unsaved = 0

    def speed_gbs(self, device: str, backend: str) -> float | None:
        """Measured bytes a second read while decoding, in GB/s."""
        return self._speeds.get(f"{device}|{backend}")

    def record_speed(self, device: str, backend: str, bytes_per_token: int, tok_s: float) -> None:
        """Keep a measurement; a repeated one moves the stored value half way."""
        if not (bytes_per_token > 0 and 0 < tok_s < 1e6):  # noqa: PLR2004 - a clock that stood still
            return
        measured, key = bytes_per_token * tok_s / 1e9, f"{device}|{backend}"
        with self._lock:
            before = self._speeds.get(key)
            self._speeds[key] = measured if before is None else (before + measured) / 2
            self._save()

    def use(self, model: str) -> Use | None:
        """How the model was used so far."""
        return self._uses.get(model)

    def record_use(self, model: str, tokens: int, depth: float, at_once: int) -> None:
        """An answer of `tokens` ended, on average behind `depth` others, beside `at_once` - 1 requests."""
        if tokens <= 0:
            return
        with self._lock:
            before = self._uses.get(model, Use(0.0, depth, at_once))
            total = min(before.tokens + tokens, max(USE_TOKENS, tokens))
            share = tokens / total
            self._uses[model] = Use(
                total,
                before.depth + share * (depth - before.depth),
                before.at_once + share * (at_once - before.at_once),
            )
            self._unsaved += 1
            if self._unsaved >= SAVE_EVERY:
                self._save()

    def flush(self) -> None:
        """Write what answers taught since the last time."""
        with self._lock:
            if self._unsaved:
                self._save()

    def remembered(self, model: str) -> dict[str, Any]:
        """Load settings that replaced failing ones for this model; empty when none were needed."""
        return dict(self._ladders.get(model, {}))

    def remember(self, model: str, changes: dict[str, Any]) -> None:
        """Keep the settings of the rung that worked; empty changes forget it."""
        with self._lock:
            if changes:
                self._ladders[model] = changes
            else:
                self._ladders.pop(model, None)
            self._save()

    def pin(self, model: str) -> str | None:
        """The device the user wants this model on."""
        return self._pins.get(model)

    def set_pin(self, model: str, device: str | None) -> None:
        """Keep the user's choice, and forget what an earlier choice had to give up; None: no choice any more."""
        with self._lock:
            if device is None:
                self._pins.pop(model, None)
            else:
                self._pins[model] = device
            self._ladders.pop(model, None)
            self._save()

    def _save(self) -> None:
        self._unsaved = 0
        if self._path is None:
            return
        speeds = dict(list(self._speeds.items())[-KEPT:])
        ladders = dict(list(self._ladders.items())[-KEPT:])
        with contextlib.suppress(OSError):  # forgetting costs a slower first choice, nothing else
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial = self._path.with_suffix(f".{os.getpid()}.tmp")
            uses = {model: msgspec.structs.astuple(use) for model, use in list(self._uses.items())[-KEPT:]}
            pins = dict(list(self._pins.items())[-KEPT:])
            stored = {"speeds": speeds, "ladders": ladders, "pins": pins, "uses": uses}
            partial.write_text(json.dumps(stored), encoding="utf-8")
            partial.replace(self._path)


def _read(path: Path | None) -> tuple[dict[str, float], dict[str, dict[str, Any]], dict[str, str], dict[str, Use]]:
    stored = None
    if path is not None:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            stored = json.loads(path.read_bytes())

    def table(name: str) -> dict[str, Any]:
        found = stored.get(name) if isinstance(stored, dict) else None
        return found if isinstance(found, dict) else {}

    return (
        {k: float(v) for k, v in table("speeds").items() if type(v) in {int, float} and v > 0},
        {k: v for k, v in table("ladders").items() if isinstance(v, dict)},
        {k: v for k, v in table("pins").items() if isinstance(v, str)},
        {k: use for k, v in table("uses").items() if (use := _use(v)) is not None},
    )


def _use(stored: Any) -> Use | None:
    if not isinstance(stored, list) or len(stored) != len(Use.__struct_fields__):
        return None
    sound = all(type(v) in {int, float} and 0 <= v < 1e9 for v in stored)  # noqa: PLR2004 - no NaN, no nonsense
    return Use(*map(float, stored)) if sound else None

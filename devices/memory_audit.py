"""Compares predictions with measurements: stored, shown, and used to correct later predictions of the same kind."""

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict, force_setattr

from devices.atomic_file import write_atomically

MAX_ENTRIES = 500
# One load moves the correction by this share of its error, so that a single bad measurement cannot spoil it.
WEIGHT = 0.5
# Only upwards: just after a load less memory is resident than in full use, so a low value disproves nothing.
# Above the upper bound the prediction has a bug that no factor fixes.
SMALLEST, LARGEST = 1.0, 1.25


class Audit(msgspec.Struct, frozen=True):
    """One audit of a loaded model: predicted and measured bytes, backend buffers by name, seconds since the epoch.

    `moment` is `load`, just after it, when not everything reserved was used yet, or `unload`, after use.
    `error_frac`, derived from these, is the prediction's error as a share of the measured bytes; positive means
    that too much was predicted.
    """

    owner: str
    key: str
    predicted_bytes: int
    measured_bytes: int
    at: float
    buffers: Mapping[str, int] = msgspec.field(default_factory=dict)
    moment: str = "load"
    error_frac: float = 0.0

    def __post_init__(self) -> None:
        off = self.predicted_bytes - self.measured_bytes
        force_setattr(self, "error_frac", off / self.measured_bytes if self.measured_bytes else 0.0)


class AuditLog:
    """The last audits, in `path` as JSON lines (None: in memory only). A corrupt line is skipped."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._audits = _read(path)[-MAX_ENTRIES:] if path else []

    def all(self) -> tuple[Audit, ...]:
        """All audits, oldest first."""
        with self._lock:
            return tuple(self._audits)

    def correction(self, key: str) -> float:
        """Factor for predictions of this kind; 1 if nothing was measured yet."""
        factor = 1.0
        with self._lock:
            ratios = [
                a.measured_bytes / a.predicted_bytes for a in self._audits if a.key == key and a.predicted_bytes
            ]
        for ratio in ratios:  # predictions were corrected by the factor of their time, so ratios multiply
            factor *= 1 + WEIGHT * (ratio - 1)
            factor = min(LARGEST, max(SMALLEST, factor))
        return factor

    def add(
        self,
        owner: str,
        key: str,
        predicted_bytes: int,
        measured_bytes: int,
        buffers: Mapping[str, int],
        moment: str = "load",
    ) -> Audit:
        """Store one measurement."""
        audit = Audit(owner, key, predicted_bytes, measured_bytes, time.time(), dict(buffers), moment)
        with self._lock:
            self._audits = [*self._audits, audit][-MAX_ENTRIES:]
            if self._path is not None:
                with contextlib.suppress(OSError):  # a full disk must not fail a load that has succeeded
                    _write(self._path, self._audits)
        return audit


def _read(path: Path) -> list[Audit]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines[-MAX_ENTRIES:]:
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            found.append(_audit(json.loads(line)))
    return found


def _audit(item: Any) -> Audit:
    predicted, measured = item["predicted_bytes"], item["measured_bytes"]
    if not (type(predicted) is int and type(measured) is int and predicted > 0 and measured > 0):
        raise ValueError(item)
    buffers = {str(name): int(size) for name, size in item.get("buffers", {}).items()}
    return Audit(
        str(item["owner"]),
        str(item["key"]),
        predicted,
        measured,
        float(item["at"]),
        buffers,
        str(item.get("moment", "load")),
    )


def _write(path: Path, audits: list[Audit]) -> None:
    write_atomically(path, "".join(json.dumps(asdict(audit)) + "\n" for audit in audits).encode(), durable=False)

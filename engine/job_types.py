"""What a job is, as everybody sees it."""

from typing import Any, Literal

import msgspec

JobState = Literal["queued", "running", "paused", "failed", "cancelled", "done"]
_ENDED = frozenset({"failed", "cancelled", "done"})


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is. `speed` is units a second over the last seconds; `eta_s` None while it is unknown.

    Units are bytes unless `unit` says otherwise. `stalled`: nothing has moved for five seconds. `partial` is what
    of the result is known already.
    """

    phase: str = ""
    done: int = 0
    total: int = 0
    unit: str = "bytes"
    speed: float = 0.0
    eta_s: float | None = None
    stalled: bool = False
    note: str = ""
    partial: dict[str, Any] = {}


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job failed or paused by itself: the error's code, its words and its facts."""

    code: str
    message: str
    facts: dict[str, Any] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job as everybody sees it; a new record for every change. Times are seconds since the epoch."""

    id: str
    kind: str
    title: str
    params: dict[str, Any]
    state: JobState
    created_at: float
    updated_at: float
    progress: Progress = Progress()
    result: dict[str, Any] | None = None
    error: Fault | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in _ENDED

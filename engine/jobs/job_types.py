"""Data types of jobs, as clients see them."""

import time
from enum import Enum
from typing import Any, Literal, Self

import msgspec

from engine.message_catalog.reasons import Reason

JobState = Literal["queued", "running", "paused", "failed", "cancelled", "done"]
ENDED = frozenset({"failed", "cancelled", "done"})


class JobKind(Enum):
    """The kind of work a job does. Code that treats kinds differently checks a trait, never a list of names.

    `title` is English, with a placeholder for the `name` of the target. `loses_work`: a job that is interrupted has
    to start again. `can_pause`: a pause keeps the progress, so that resuming continues from there.
    """

    title: str
    loses_work: bool
    can_pause: bool

    def __new__(cls, value: str, title: str = "", *traits: str) -> Self:
        """Create a kind from its name on the wire, its title and its traits."""
        kind = object.__new__(cls)
        kind._value_ = value
        kind.title = title
        kind.loses_work = "loses work" in traits
        kind.can_pause = "can pause" in traits
        return kind

    PULL = "pull", "Downloading {name}", "can pause"
    IMPORT = "import", "Importing {name}", "loses work"
    VERIFY = "verify", "Checking {name}"
    COMPARE = "compare", "Comparing uploads of {name}"
    MOVE = "move", "Moving the models to {name}", "can pause"
    QUANTIZE = "quantize", "Making {name} fit", "loses work", "can pause"
    CONVERT = "convert", "Converting {name}", "loses work"
    FETCH = "fetch", "Downloading {name}"
    # A paused search for settings keeps its record; a benchmark starts again.
    MEASURE = "measure", "{name}", "loses work", "can pause"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a job. `speed` is in units per second over the last seconds; `eta_s` None means unknown.

    The unit is bytes by default, see `unit`. `stalled`: no progress for five seconds. `partial` is the part of the
    result that exists already, `note_detail` the note as structured data. With `partial["usable"]` the job can be
    finished: it ends with the result that it has so far.
    """

    phase: str = ""
    done: int = 0
    total: int = 0
    unit: str = "bytes"
    speed: float = 0.0
    eta_s: float | None = None
    stalled: bool = False
    note: str = ""
    note_detail: Reason | None = None
    partial: dict[str, Any] = {}


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job failed or paused by itself: the error's code, message and facts, and which part caused it."""

    code: str
    message: str
    facts: dict[str, Any] = {}
    blame: Literal["request", "machine", "program"] = "machine"


class ModelMade(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of a job of kind `pull` or `import`: the model's id and its path.

    `is_new`, for an import: no model with the same content existed.
    """

    model: str
    path: str
    size_bytes: int = 0
    is_new: bool | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job as clients see it; every change creates a new record. Times are seconds since the epoch."""

    id: str
    kind: JobKind
    title: str
    params: dict[str, Any] = {}
    state: JobState = "queued"
    created_at: float = 0.0
    updated_at: float = 0.0
    progress: Progress = Progress()
    result: dict[str, Any] | None = None
    error: Fault | None = None

    @property
    def ended(self) -> bool:
        """Whether the job is finished and cannot change any more."""
        return self.state in ENDED

    def changed(self, **changes: Any) -> Self:
        """The record with changes and a new timestamp.

        The timestamp never decreases, even if the clock was set back: subscribers take the latest record.
        """
        return msgspec.structs.replace(self, updated_at=max(time.time(), self.updated_at), **changes)

"""What a job is, as everybody sees it."""

import time
from enum import Enum
from typing import Any, Literal, Self

import msgspec

from engine.message_catalog.reasons import Reason

JobState = Literal["queued", "running", "paused", "failed", "cancelled", "done"]
ENDED = frozenset({"failed", "cancelled", "done"})


class JobKind(Enum):
    """What a job does. Whoever treats kinds differently asks for a trait, never for a list of names.

    `title` is English with a place for the `name` of what is worked on. `loses_work`: ended before it is done, it
    has to begin again. `can_pause`: a pause keeps what it has, so that resuming continues from there.
    """

    title: str
    loses_work: bool
    can_pause: bool

    def __new__(cls, value: str, title: str = "", *traits: str) -> Self:
        """A kind from its name on the wire, its title and the traits it has."""
        kind = object.__new__(cls)
        kind._value_ = value
        kind.title = title
        kind.loses_work = "loses work" in traits
        kind.can_pause = "can pause" in traits
        return kind

    PULL = "pull", "Downloading {name}", "can pause"
    IMPORT = "import", "Importing {name}", "loses work"
    VERIFY = "verify", "Checking {name}"
    QUANTIZE = "quantize", "Making {name} fit", "loses work", "can pause"
    CONVERT = "convert", "Converting {name}", "loses work"
    # A search for settings keeps its record when it is paused; a measurement begins again.
    MEASURE = "measure", "{name}", "loses work", "can pause"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is. `speed` is units a second over the last seconds; `eta_s` None while it is unknown.

    Units are bytes unless `unit` says otherwise. `stalled`: nothing has moved for five seconds. `partial` is what
    of the result is known already, `note_detail` the note as facts.
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
    """Why a job failed or paused by itself: the error's code, its words, its facts, and what is to blame for it."""

    code: str
    message: str
    facts: dict[str, Any] = {}
    blame: Literal["request", "machine", "program"] = "machine"


class ModelMade(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of a job of kind `pull` or `import`: the model's id and where it is.

    `is_new`, of an import: there was no model with the same content.
    """

    model: str
    path: str
    size_bytes: int = 0
    is_new: bool | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job as everybody sees it; a new record for every change. Times are seconds since the epoch."""

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
        """Whether nothing more will happen to it."""
        return self.state in ENDED

    def changed(self, **changes: Any) -> Self:
        """The record after a change now. Never older: followers take the latest, also when a clock was set back."""
        return msgspec.structs.replace(self, updated_at=max(time.time(), self.updated_at), **changes)

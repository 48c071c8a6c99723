"""One model of the pool: its runner, its load, and where those stand who wait for it."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from engine.core.errors import RunnerDied
from engine.core.startup_timing import Phases
from engine.core.types import GenerationRequest, ModelFacts
from engine.placement.types import ModelSettings, Placement
from engine.runner.buffers import BufferLog
from engine.runner.protocol import COMPILING, Embedded, LoadSettings, Stats

# Ends of a runner that are remembered of a model.
MAX_CRASHES: Final = 3

# The engine of models that another server runs: no memory here, and no process.
REMOTE: Final = "remote"
# That of models that another program here runs: a server that is started for the model, reached as an upstream is.
EXTERNAL: Final = "external"
# That of loads some of whose layers lie on workers: a runner here, and links that it lives and ends with.
SPREAD: Final = "spread"


class Runner(Protocol):
    """What serves one model: a child process (`RunnerProcess`), or another server. `pid` None: it is no process."""

    @property
    def pid(self) -> int | None: ...
    @property
    def alive(self) -> bool: ...
    @property
    def active_requests(self) -> int: ...
    @property
    def died(self) -> RunnerDied | None: ...
    @property
    def buffers(self) -> BufferLog: ...
    async def load(
        self, settings: LoadSettings, on_progress: Callable[[str, float], None] | None = None
    ) -> ModelFacts: ...
    def generate(self, request: GenerationRequest) -> AsyncIterator[Any]: ...
    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]: ...
    async def detokenize(self, token_ids: list[int]) -> list[bytes]: ...
    async def embed(
        self,
        inputs: list[str | list[int]],
        *,
        normalize: bool = True,
        query: str | None = None,
        truncate: bool = False,
        quick: bool = False,
    ) -> Embedded: ...
    async def stats(self) -> Stats: ...
    async def stop(self) -> None: ...
    def kill(self) -> None: ...


@dataclass
class LoadedModel:
    """One model that is loaded or being loaded.

    `progress` of `phase` is 0 to 1; `waiting` requests wait for its load. It is unloaded after `ttl_s` without a
    request (None: never), or earlier when another model needs its room, unless it is `pinned`. `notes` tell what
    was changed because the first settings failed; `proven` are the last settings that generated a token.
    `chosen` is what the user had set at the load, `pending` are fields that were set otherwise since: they come
    into force when the last answer ends; `answered` is set whenever one does.
    `loaded_settings` are those of the load, before its context grew.
    `widened` is the runner whose deterministic requests have their memory. `placement` is what was chosen for this
    load, before anything failed; `phases` are those of the load, from the request for the model on.
    """

    id: str
    engine: str
    settings: LoadSettings
    loaded_settings: LoadSettings | None = None
    placement: Placement | None = None
    runner: Runner | None = None
    facts: ModelFacts | None = None
    progress: float = 0.0
    phase: str = ""
    loading: bool = False
    waiting: int = 0
    ttl_s: float | None = None
    pinned: bool = False
    phases: Phases = field(default_factory=Phases)
    notes: list[str] = field(default_factory=list)
    proven: LoadSettings | None = None
    widened: Runner | None = None
    chosen: ModelSettings = field(default_factory=ModelSettings)
    pending: tuple[str, ...] = ()
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    loaded_at: float = 0.0
    last_used: float = field(default_factory=time.monotonic)
    crashes: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_CRASHES))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def ready(self) -> bool:
        """A live runner serves it."""
        return self.runner is not None and self.runner.alive and self.facts is not None

    @property
    def queued(self) -> int:
        """Requests that wait for their turn."""
        if self.runner is None or self.facts is None:
            return self.waiting
        return self.waiting + max(0, self.runner.active_requests - self.facts.n_parallel)

    @property
    def idle(self) -> bool:
        """Loaded, and nobody uses or waits for it."""
        return self.ready and not self.waiting and self.runner is not None and self.runner.active_requests == 0

    @property
    def expires_in_s(self) -> float | None:
        """Seconds until the model is unloaded if no request comes; None: it stays."""
        if self.pinned or self.ttl_s is None:
            return None
        return max(0.0, self.last_used + self.ttl_s - time.monotonic())


class QueueTicket:
    """Where one request stands while its model loads, for those who tell the client."""

    def __init__(self) -> None:
        self._model: LoadedModel | None = None
        self._before = 0

    def take(self, model: LoadedModel) -> None:
        """Queue up for a model."""
        self._model, self._before = model, model.waiting

    @property
    def compiling(self) -> bool:
        """What is slow now is the compiler of its device, which keeps what it makes for later loads."""
        return self._model is not None and self._model.phase == COMPILING

    @property
    def loading(self) -> bool:
        """The model is not there yet."""
        return self._model is not None and not self._model.ready

    @property
    def fraction(self) -> float:
        """How far the load is, 0 to 1."""
        return 0.0 if self._model is None else 1.0 if self._model.ready else self._model.progress

    @property
    def before(self) -> int:
        """Requests that wait for the same load and came earlier."""
        return self._before

    def words(self) -> str:
        """How far the load is and who came before; nothing once the model is there."""
        model = self._model
        if model is None or model.ready:
            return ""
        return f"loading {model.progress:.0%}, requests before this one: {self._before}"

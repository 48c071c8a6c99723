"""State of one model of the pool: its runner, its load, and the queue position of waiting requests."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from engine.core.errors import RunnerDied, fact_of
from engine.core.startup_timing import StartupTimer
from engine.core.types import GenerationRequest, ModelFacts
from engine.message_catalog.reasons import because
from engine.placement.types import ModelSettings, Placement
from engine.runner.load_limits import own_growth_limit
from engine.runner.pipes import BufferLog
from engine.runner.protocol import COMPILING, Embedded, LoadSettings, Stats

# A model whose runner crashed MAX_CRASHES times within this time is not loaded until its file or settings change.
MAX_CRASHES: Final = 3
CRASH_WINDOW_S: Final = 300.0
# Interval of checks whether other requests still wait for a load whose own request has been cancelled.
NEEDED_S: Final = 0.2

# Engine of models that another server runs. They need no local memory and no local process.
REMOTE: Final = "remote"
# Engine of models that another local program runs: a server started for the model and called like an upstream.
EXTERNAL: Final = "external"
# Engine of loads with some layers on workers: a local runner and its connections, which end together.
SPREAD: Final = "spread"


class Runner(Protocol):
    """The process that serves one model: a child process (`RunnerProcess`), or another server (`pid` is None)."""

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

    `progress` of `phase` is 0 to 1. `waiting` is the number of requests that wait for the load. The model is
    unloaded after `ttl_s` without a request (None: never), or earlier if another model needs its memory and it is
    not `pinned`. `notes` describe settings that were changed after a failed load, `news` are notes of
    the next answer alone. `proven` are the last settings
    that generated a token.
    `chosen` are the user's settings at load time. `pending` are fields that changed since; they take effect when
    the last response ends. `answered` is set at the end of each response.
    `loaded_settings` are the settings at load, before the context grew.
    `widened` is the runner that has memory reserved for deterministic requests. `placement` was chosen for this
    load before any fallback. `phases` are the load phases, measured from the request for the model.
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
    phases: StartupTimer = field(default_factory=StartupTimer)
    notes: list[str] = field(default_factory=list)
    news: list[str] = field(default_factory=list)
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
        """Whether a live runner serves the model."""
        return self.runner is not None and self.runner.alive and self.facts is not None

    @property
    def has_died(self) -> bool:
        """Whether its runner has ended by itself, and nothing is being done with the model."""
        return self.runner is not None and not self.runner.alive and not self.lock.locked()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Prevent eviction meanwhile."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def count_crash(self, now: float) -> None:
        """Count a crash of the last runner. Raises: RunnerDied: there were too many, and it is not loaded again."""
        died = self.runner.died if self.runner is not None else None
        if died is not None and self.facts is not None:
            self.crashes.append(now)
        if len(self.crashes) < MAX_CRASHES or now - self.crashes[0] >= CRASH_WINDOW_S:
            return
        raise RunnerDied(
            died.exit_code if died else None,
            because(
                "keeps_crashing",
                model=self.id,
                times=MAX_CRASHES,
                seconds=CRASH_WINDOW_S,
                last=(fact_of(died) or died.reason) if died else "unknown",
            ),
            died.stderr_tail if died else (),
        )

    def limit_growth(self) -> None:
        """Set the limit of `facts` for growth to what the user's settings allow."""
        if self.facts is not None and self.facts.max_ctx:
            self.facts = msgspec.structs.replace(self.facts, max_ctx=own_growth_limit(self.settings))

    @property
    def queued(self) -> int:
        if self.runner is None or self.facts is None:
            return self.waiting
        return self.waiting + max(0, self.runner.active_requests - self.facts.n_parallel)

    @property
    def idle(self) -> bool:
        """Whether the model is loaded and has no active or waiting requests."""
        return self.ready and not self.waiting and self.runner is not None and self.runner.active_requests == 0

    @property
    def expires_in_s(self) -> float | None:
        """Seconds until the model is unloaded if no request arrives; None: never."""
        if self.pinned or self.ttl_s is None:
            return None
        return max(0.0, self.last_used + self.ttl_s - time.monotonic())


async def while_needed(work: Coroutine[Any, Any, None], is_needed: Callable[[], bool]) -> None:
    """Await `work`. If the caller is cancelled, `work` goes on while `is_needed` and is cancelled then."""
    task, is_cancelled = asyncio.create_task(work), False
    while not task.done():
        try:
            await asyncio.wait((task,), timeout=NEEDED_S if is_cancelled else None)
        except asyncio.CancelledError:
            is_cancelled = True
        if is_cancelled and not is_needed():
            task.cancel()
    if is_cancelled:
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # read, so that it is not reported as lost
        raise asyncio.CancelledError
    task.result()


class QueueTicket:
    """Queue position and load progress of one request, for reporting to the client."""

    def __init__(self) -> None:
        self._model: LoadedModel | None = None
        self._before = 0

    def take(self, model: LoadedModel) -> None:
        self._model, self._before = model, model.waiting

    @property
    def compiling(self) -> bool:
        """Whether the device's compiler is running. Its result is cached for later loads."""
        return self._model is not None and self._model.phase == COMPILING

    @property
    def loading(self) -> bool:
        """Whether the model is still loading."""
        return self._model is not None and not self._model.ready

    @property
    def fraction(self) -> float:
        """Load progress, 0 to 1."""
        return 0.0 if self._model is None else 1.0 if self._model.ready else self._model.progress

    @property
    def before(self) -> int:
        """Number of earlier requests that wait for the same load."""
        return self._before

    def words(self) -> str:
        """Load progress and queue position as text; "" once the model is loaded."""
        model = self._model
        if model is None or model.ready:
            return ""
        return f"loading {model.progress:.0%}, requests before this one: {self._before}"

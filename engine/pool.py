"""The loaded models: one runner each, loaded on demand, replaced when they die."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from engine.errors import RunnerDied
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from engine.types import Event, GenerationRequest, ModelFacts

log = logging.getLogger(__name__)

# A model that kills its runner this often in this time is not loaded again until the file or settings change.
MAX_CRASHES: Final = 3
CRASH_WINDOW_S: Final = 300.0


class ModelSource(Protocol):
    """Turns a model's name into what a runner needs."""

    async def resolve(self, model: str) -> tuple[str, str, LoadSettings]:
        """The model's id, the engine that runs it and its settings; ModelNotFound or another EngineError."""
        ...


Starter = Callable[[str, str], Awaitable[RunnerProcess]]


@dataclass
class LoadedModel:
    """One model that is loaded or being loaded. `progress` runs from 0 to 1."""

    id: str
    engine: str
    settings: LoadSettings
    runner: RunnerProcess | None = None
    facts: ModelFacts | None = None
    progress: float = 0.0
    loaded_at: float = 0.0
    last_used: float = field(default_factory=time.monotonic)
    crashes: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_CRASHES))
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def ready(self) -> bool:
        """A live runner serves it."""
        return self.runner is not None and self.runner.alive and self.facts is not None


class Pool:
    """Hands out live runners by model name."""

    def __init__(self, source: ModelSource, start: Starter = RunnerProcess.start) -> None:
        self._source = source
        self._start = start
        self._models: dict[str, LoadedModel] = {}
        self._ids: dict[str, str] = {}

    @property
    def loaded(self) -> list[LoadedModel]:
        """Models with a live runner."""
        return [m for m in self._models.values() if m.ready]

    def get(self, model_id: str) -> LoadedModel | None:
        """The model with this id if it was ever asked for."""
        return self._models.get(model_id)

    async def acquire(self, name: str, on_progress: Callable[[float], None] | None = None) -> LoadedModel:
        """A loaded model, loading it first if need be.

        Raises: ModelNotFound, BadModelFile, NotEnoughMemory, RunnerDied.
        """
        known = self._models.get(self._ids.get(name, ""))
        if known is not None and known.ready:
            return known
        model_id, engine, settings = await self._source.resolve(name)
        self._ids[name] = model_id
        model = self._models.get(model_id)
        if model is None:
            model = self._models[model_id] = LoadedModel(model_id, engine, settings)
        async with model.lock:
            if not model.ready:
                model.settings = settings
                await self._load(model, on_progress)
        return model

    async def _load(self, model: LoadedModel, on_progress: Callable[[float], None] | None) -> None:
        now = time.monotonic()
        if model.runner is not None and model.runner.died is not None and model.facts is not None:
            model.crashes.append(now)
        if len(model.crashes) == MAX_CRASHES and now - model.crashes[0] < CRASH_WINDOW_S:
            died = model.runner.died if model.runner else None
            raise RunnerDied(
                died.exit_code if died else None,
                f"{model.id} ended its runner {MAX_CRASHES} times in {CRASH_WINDOW_S:.0f} s and is not started "
                f"again for now; the last time: {died.reason if died else 'unknown'}",
                died.stderr_tail if died else (),
            )
        model.facts, model.progress = None, 0.0

        def progress(_phase: str, fraction: float) -> None:
            model.progress = fraction
            if on_progress is not None:
                on_progress(fraction)

        runner = await self._start(model.engine, model.settings.path)
        model.runner = runner
        try:
            model.facts = await runner.load(model.settings, progress)
        except BaseException:
            runner.kill()
            raise
        model.loaded_at = time.monotonic()
        log.info("loaded model=%s pid=%d ms=%d", model.id, runner.pid, (model.loaded_at - now) * 1000)

    async def generate(self, model: LoadedModel, request: GenerationRequest) -> AsyncIterator[Event]:
        """Run a request on a loaded model."""
        assert model.runner is not None
        model.last_used = time.monotonic()
        async for event in model.runner.generate(request):
            yield event
        model.last_used = time.monotonic()

    async def unload(self, model_id: str) -> bool:
        """Stop a model's runner; False when it was not loaded."""
        model = self._models.pop(model_id, None)
        if model is None or model.runner is None:
            return False
        async with model.lock:
            await model.runner.stop()
        return True

    async def close(self) -> None:
        """Stop every runner."""
        await asyncio.gather(*(self.unload(model_id) for model_id in list(self._models)))

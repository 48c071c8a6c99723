"""Callbacks that the pool calls for each generation."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from engine.core.types import Delta, Done, Event, GenerationRequest, Started, Timings, Usage
from engine.placement.memory_admission import MemoryAdmission
from engine.pool.loaded_model import LoadedModel, Runner
from engine.runner.protocol import LoadSettings


@dataclass
class GenerationHooks:
    """Optional callbacks of the pool.

    `first_token` is called once, at the first token of any model. `admits` raises an error to refuse a request.
    `metered` returns the `Done` event with the request's energy added. `finished` is called once per started
    generation. If the caller stops early, it gets the usage up to that point. `watch_rows` returns the settings of
    a load before it begins, perhaps with rows to record.
    """

    first_token: Callable[[], None] | None = None
    admits: Callable[[LoadedModel, GenerationRequest], None] | None = None
    metered: Callable[[LoadedModel, Done], Awaitable[Done]] | None = None
    finished: Callable[[LoadedModel, Usage, Timings], None] | None = None
    watch_rows: Callable[[LoadedModel, Runner, LoadSettings], LoadSettings] | None = None

    async def ended(self, model: LoadedModel, done: Done) -> Done:
        """Report the end of a generation; return it with the model's news and the energy."""
        news, model.news = tuple(model.news), []
        done = replace(done, notes=news) if news else done
        done = await self.metered(model, done) if self.metered is not None else done
        if self.finished is not None:
            self.finished(model, done.usage, done.timings)
        return done


def observe(admission: MemoryAdmission, model: LoadedModel, done: Done, at_once: int) -> None:
    """Report the response length and the model's speed to the admission."""
    tokens = done.usage.completion_tokens
    depth = done.usage.prompt_tokens + tokens / 2
    admission.answered(model.id, tokens, depth, at_once)
    if done.timings.decode_s > 0 and at_once == 1:
        admission.observed(model.id, tokens, done.timings.decode_s, depth)


class Watch:
    """Observes one generation: `add` each event, then `done` the last one, or `left` if the caller stops early.

    Reports to the admission that the settings work, and the measured speed. Counts tokens and times as measured in
    the server process.
    """

    def __init__(
        self,
        hooks: GenerationHooks,
        model: LoadedModel,
        admission: MemoryAdmission,
        request: GenerationRequest,
        at_once: Callable[[], int],
    ) -> None:
        self._hooks = hooks
        self._model = model
        self._admission = admission
        self._request = request
        self._at_once = at_once
        self._is_reported = False
        self._started_at = self._first = self._last = time.monotonic()
        self._started = Started(prompt_tokens=0, cached_tokens=0)
        self._tokens = 0
        self._begun = False
        self.has_answer = False

    def add(self, event: Event) -> None:
        """Observe an event."""
        if isinstance(event, Delta):
            self.has_answer = True
            self._last = time.monotonic()
            if not self._tokens:
                self._first = self._last
                self._works()
            self._tokens += len(event.token_ids)
        elif isinstance(event, Started):
            self._started, self._begun = event, True
            if self._request.deterministic:  # its context is created before it starts
                self._admission.widened(self._model.id)

    def _works(self) -> None:
        hooks = self._hooks
        if hooks.first_token is not None:
            hooks.first_token()
            hooks.first_token = None
        self._prove()

    def _prove(self) -> None:
        model = self._model
        if model.proven != model.settings:
            model.proven = model.settings
            self._admission.proven(model.id)

    async def done(self, event: Done) -> Done:
        """Report the end; return it with the model's news and the energy."""
        self.has_answer = True
        self._prove()
        observe(self._admission, self._model, event, max(1, self._at_once()))
        self._is_reported = True
        return await self._hooks.ended(self._model, event)

    def left(self) -> None:
        """Report what was generated until the caller stopped."""
        if self._begun and not self._is_reported and self._hooks.finished is not None:
            usage = Usage(
                prompt_tokens=self._started.prompt_tokens,
                completion_tokens=self._tokens,
                cached_tokens=self._started.cached_tokens,
            )
            timings = Timings(ttft_s=self._first - self._started_at, decode_s=self._last - self._first)
            self._hooks.finished(self._model, usage, timings)

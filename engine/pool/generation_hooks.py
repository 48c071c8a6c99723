"""Callbacks that the pool calls for each generation."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

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

    async def watch(
        self,
        model: LoadedModel,
        admission: MemoryAdmission,
        events: AsyncIterator[Event],
        at_once: Callable[[], int],
    ) -> AsyncGenerator[Event, None]:
        """Yields the events of one runner; closing the generator early ends the generation.

        `at_once` returns the number of concurrent requests. Reports to the admission that the settings work, and
        the measured speed.
        """
        counts, is_reported = _Made(), False
        try:
            async with aclosing(cast("AsyncGenerator[Event, None]", events)) as source:
                async for event in source:
                    counts.add(event)
                    if self.first_token is not None and isinstance(event, Delta):
                        self.first_token()
                        self.first_token = None
                    if isinstance(event, (Delta, Done)) and model.proven != model.settings:
                        model.proven = model.settings
                        admission.proven(model.id)
                    if isinstance(event, Done):
                        observe(admission, model, event, max(1, at_once()))
                        is_reported = True
                        event = await self._end(model, event)  # noqa: PLW2901 - adds news and the energy
                        if self.finished is not None:
                            self.finished(model, event.usage, event.timings)
                    yield event
        except (GeneratorExit, asyncio.CancelledError):
            if counts.begun and not is_reported and self.finished is not None:
                self.finished(model, counts.usage, counts.timings)
            raise

    async def _end(self, model: LoadedModel, done: Done) -> Done:
        news, model.news = tuple(model.news), []
        done = replace(done, notes=news) if news else done
        return await self.metered(model, done) if self.metered is not None else done


def observe(admission: MemoryAdmission, model: LoadedModel, done: Done, at_once: int) -> None:
    """Report the response length and the model's speed to the admission."""
    tokens = done.usage.completion_tokens
    depth = done.usage.prompt_tokens + tokens / 2
    admission.answered(model.id, tokens, depth, at_once)
    if done.timings.decode_s > 0 and at_once == 1:
        admission.observed(model.id, tokens, done.timings.decode_s, depth)


class _Made:
    """Tokens and times of a generation so far, as measured in the server process."""

    def __init__(self) -> None:
        self._started_at = self._first = self._last = time.monotonic()
        self._started = Started(prompt_tokens=0, cached_tokens=0)
        self._tokens = 0
        self.begun = False

    def add(self, event: Event) -> None:
        if isinstance(event, Started):
            self._started, self.begun = event, True
        elif isinstance(event, Delta):
            self._last = time.monotonic()
            if not self._tokens:
                self._first = self._last
            self._tokens += len(event.token_ids)

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._started.prompt_tokens,
            completion_tokens=self._tokens,
            cached_tokens=self._started.cached_tokens,
        )

    @property
    def timings(self) -> Timings:
        return Timings(ttft_s=self._first - self._started_at, decode_s=self._last - self._first)

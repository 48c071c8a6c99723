"""Measures a loaded model: prefill and decode at several lengths, and several concurrent sequences."""

import asyncio
import contextlib
import random
import statistics
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from engine.core.types import Done, GenerationRequest, SamplingParams, StepTime
from engine.message_catalog.reasons import Reason, because
from engine.placement.measurements import Concurrency, Point, Spread
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

DECODE_TOKENS: Final = 32
# A passage repeated three times, which a copying model would continue.
COPIED_TOKENS: Final = 48
Step = Callable[[Reason], None]


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes."""
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


class Timed(msgspec.Struct, frozen=True):
    """One run: prefill and decode in tokens/s, time to first token and between tokens (50, 90, 99 %) in seconds.

    `step_time` is the runner time it used.
    """

    prefill_tok_s: float
    decode_tok_s: float
    ttft_s: float
    itl_s: tuple[float, ...]
    step_time: StepTime | None = None


@contextlib.asynccontextmanager
async def loaded_meter(settings: LoadSettings, tokens: int, length: int) -> AsyncIterator["Meter"]:
    """A meter for a runner with these settings, warmed up with a prompt of `length` tokens."""
    runner = await RunnerProcess.start("llama", settings.path)
    try:
        facts = await runner.load(settings)
        meter = Meter(runner, facts.n_vocab, lambda _: None, tokens)
        await meter.timed(length)
        yield meter
    finally:
        await runner.stop()


class Meter:
    """Runs prompts of random tokens in one runner, as llama-bench does, without using or filling caches.

    `step` receives what is measured, and may raise to stop. `tokens` are generated after each prompt.
    """

    def __init__(self, runner: RunnerProcess, n_vocab: int, step: Step, tokens: int = DECODE_TOKENS) -> None:
        self._runner = runner
        self._random = random.Random(0)  # noqa: S311 - prompts only have to differ
        self._n_vocab = n_vocab
        self._step = step
        self.tokens = tokens

    async def run(self, length: int, tokens: int) -> Done:
        """One prompt of `length` random tokens, then exactly `tokens` more."""
        return await self._generate(
            GenerationRequest(
                prompt=self._prompt(length),
                max_tokens=tokens,
                sampling=SamplingParams(temperature=0),
                ignore_eos=True,
                speculate=False,
                cache_prompt=False,
                stream=False,
                priority="background",
            )
        )

    async def timed(self, length: int) -> Timed:
        """One prompt of `length` tokens and the response."""
        return self._timed(await self.run(length, self.tokens + 1), length)

    async def copied(self) -> Timed:
        """A repetitive text, for which speculative decoding may pay."""
        request = GenerationRequest(
            prompt=self._prompt(COPIED_TOKENS) * 3,
            max_tokens=self.tokens + 1,
            sampling=SamplingParams(temperature=0),
            ignore_eos=True,
            cache_prompt=False,
            stream=False,
            priority="background",
        )
        return self._timed(await self._generate(request), 3 * COPIED_TOKENS)

    def _timed(self, done: Done, length: int) -> Timed:
        t = done.timings
        return Timed(
            prefill_tok_s=length / max(t.prefill_s, 1e-9),
            decode_tok_s=self.tokens / max(t.decode_s, 1e-9),
            ttft_s=t.ttft_s,
            itl_s=t.itl_s,
            step_time=t.step_time,
        )

    async def point(self, length: int, repeats: int) -> Point:
        """Measure one prompt length, `repeats` times."""
        rows = []
        for i in range(repeats):
            self._step(because("bench_length", tokens=length, run=i + 1, runs=repeats))
            rows.append(await self.timed(length))
        gaps = [r.itl_s for r in rows if r.itl_s]
        return Point(
            length=length,
            prefill_tok_s=spread([r.prefill_tok_s for r in rows]),
            decode_tok_s=spread([r.decode_tok_s for r in rows]),
            ttft_s=spread([r.ttft_s for r in rows]),
            itl_s=tuple(statistics.median(column) for column in zip(*gaps, strict=True)),
        )

    async def concurrency(self, parallel: int, repeats: int) -> Concurrency:
        """Total tokens/s of several concurrent sequences with short prompts."""
        totals = []
        for i in range(repeats):
            self._step(because("bench_parallel", requests=parallel, run=i + 1, runs=repeats))
            loop = asyncio.get_running_loop()
            started = loop.time()
            await asyncio.gather(*(self.run(16, self.tokens) for _ in range(parallel)))
            totals.append(parallel * self.tokens / (loop.time() - started))
        return Concurrency(parallel=parallel, total_tok_s=spread(totals))

    def _prompt(self, length: int) -> list[int]:
        return [self._random.randrange(self._n_vocab // 8, self._n_vocab // 2) for _ in range(length)]

    async def _generate(self, request: GenerationRequest) -> Done:
        async for event in self._runner.generate(request):
            if isinstance(event, Done):
                return event
        raise AssertionError("a generation ended without its last event")

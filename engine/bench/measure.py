"""Measure a loaded model: prefill and decode at several lengths, and several sequences at once."""

import asyncio
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Final

from engine.bench.types import Concurrency, Point, Spread
from engine.runner.process import RunnerProcess
from engine.types import Done, GenerationRequest, SamplingParams

DECODE_TOKENS: Final = 32
Step = Callable[[str], None]


def spread(values: Sequence[float]) -> Spread:
    """Median and extremes."""
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


class Meter:
    """Runs prompts nobody has cached through one runner. `step` is told what is measured, and may raise to stop."""

    def __init__(self, runner: RunnerProcess, n_vocab: int, step: Step) -> None:
        self._runner = runner
        self._random = random.Random(0)  # noqa: S311 - prompts only have to differ
        self._n_vocab = n_vocab
        self._step = step

    async def _run(self, length: int, tokens: int) -> Done:
        prompt = [self._random.randrange(self._n_vocab // 8, self._n_vocab // 2) for _ in range(length)]
        request = GenerationRequest(
            prompt=prompt,
            max_tokens=tokens,
            sampling=SamplingParams(temperature=0),
            ignore_eos=True,
            speculate=False,
            priority="background",
        )
        async for event in self._runner.generate(request):
            if isinstance(event, Done):
                return event
        raise AssertionError("a generation ended without its last event")

    async def decode_speed(self, length: int) -> float:
        """Tokens/s of one sequence behind a prompt of `length` tokens."""
        return (await self.timed(length))[1]

    async def timed(self, length: int) -> tuple[float, float, float]:
        """Prefill tokens/s, decode tokens/s and seconds to the first token."""
        done = await self._run(length, DECODE_TOKENS + 1)
        t = done.timings
        return length / max(t.prefill_s, 1e-9), DECODE_TOKENS / max(t.decode_s, 1e-9), t.ttft_s

    async def point(self, length: int, repeats: int) -> Point:
        """One length, `repeats` times."""
        rows = []
        for i in range(repeats):
            self._step(f"{length} tokens, {i + 1} of {repeats}")
            rows.append(await self.timed(length))
        prefill, decode, ttft = (spread([r[k] for r in rows]) for k in range(3))
        return Point(length=length, prefill_tok_s=prefill, decode_tok_s=decode, ttft_s=ttft)

    async def concurrency(self, parallel: int, repeats: int) -> Concurrency:
        """Several sequences at once, short prompts: tokens/s of all together."""
        totals = []
        for i in range(repeats):
            self._step(f"{parallel} at once, {i + 1} of {repeats}")
            loop = asyncio.get_running_loop()
            started = loop.time()
            await asyncio.gather(*(self._run(16, DECODE_TOKENS) for _ in range(parallel)))
            totals.append(parallel * DECODE_TOKENS / (loop.time() - started))
        return Concurrency(parallel=parallel, total_tok_s=spread(totals))

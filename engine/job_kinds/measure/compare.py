"""Measures a model on every place that could run it, so that the choice between them is not a forecast's.

Each place gets its share of some 20 seconds: loading and compiling shaders do not count, because they happen once
anyway. Prompt and decode speed at two depths are stored per family of models, chip, driver and kernels.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from engine.job_kinds.bench.measure import Meter, Timed
from engine.job_kinds.bench.run import bench_settings
from engine.message_catalog.reasons import Reason, because
from engine.placement.candidates import Candidate
from engine.placement.history import MeasuredSpeed
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

# Seconds of measuring for all places together. At most this many places, the ones with the best forecasts.
LIMIT_S: Final = 20.0
MOST_PLACES: Final = 4
# Tokens generated after each prompt.
ANSWER: Final = 16
# Prompt lengths. The first warms up; the shallow one is as in published runs, or shorter on slow devices.
WARM_UP: Final = 64
SHALLOW: Final = (512, 128)
DEEP: Final = (8192, 4096, 2048, 1024, 512, 256)
# Share of a place's seconds for the shallow point; reading at depth may be this many times slower.
SHALLOW_SHARE: Final = 0.25
SLOWER_DEEP: Final = 2.0
# How often a stop is looked for.
LOOK_S: Final = 0.1


def longest(candidate: Candidate) -> int:
    """Tokens of the longest prompt: within the context that the model would have there."""
    room = candidate.settings.n_ctx - ANSWER
    return next((length for length in DEEP if length <= room), DEEP[-1])


def compare_settings(candidate: Candidate) -> LoadSettings:
    """Load settings of a measurement on that place."""
    return bench_settings(candidate.settings, (longest(candidate),), (1,), ANSWER)


async def measure_place(
    candidate: Candidate, limit_s: float, step: Callable[[Reason], None], check: Callable[[], None]
) -> MeasuredSpeed:
    """Speeds of the model on one place, in about `limit_s` seconds. `check` raises to stop, ten times a second.

    Raises: BadModelFile, RunnerDied, and what `check` raises.
    """
    return await _until_stopped(_measured(candidate, limit_s, step), check)


async def _measured(candidate: Candidate, limit_s: float, step: Callable[[Reason], None]) -> MeasuredSpeed:
    forecast = candidate.forecast
    assert forecast is not None
    where = because("compare_place", device=candidate.device.name, backend=candidate.backend)
    step(where)
    largest, runner = longest(candidate), await RunnerProcess.start("llama", candidate.settings.path)
    try:
        facts = await runner.load(compare_settings(candidate))
        meter = Meter(runner, facts.n_vocab, lambda _: None, ANSWER)
        await meter.timed(WARM_UP)
        first = await meter.timed(WARM_UP)
        rows = [(WARM_UP, first)]
        if SHALLOW[-1] / first.prefill_tok_s <= limit_s:  # otherwise it is too slow to lose more time on
            rows = await _two_depths(meter, first, largest, limit_s)
    finally:
        await runner.end()
    speeds = [(length, timed.prefill_tok_s, timed.decode_tok_s) for length, timed in rows]
    return forecast.measured_at(speeds, ANSWER, time.time())


async def _two_depths(meter: Meter, first: Timed, largest: int, limit_s: float) -> list[tuple[int, Timed]]:
    """A shallow run, and one as deep as the time allows."""
    shallow = next((n for n in SHALLOW if n / first.prefill_tok_s <= limit_s * SHALLOW_SHARE), SHALLOW[-1])
    await meter.run(shallow, 1)  # shaders for whole ubatches
    one = await meter.timed(shallow)
    left_s = limit_s - shallow / one.prefill_tok_s - SLOWER_DEEP * ANSWER / one.decode_tok_s
    deep = next((n for n in DEEP if n <= largest and SLOWER_DEEP * n / one.prefill_tok_s <= left_s), DEEP[-1])
    if deep <= shallow:
        return [(shallow, one)]
    return [(shallow, one), (deep, await meter.timed(deep))]


async def _until_stopped(work: Coroutine[Any, Any, MeasuredSpeed], check: Callable[[], None]) -> MeasuredSpeed:
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_S)
            check()
        return await task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

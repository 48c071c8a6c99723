"""One trial: load in a runner of its own, measure, stop. A crash, a hang or a refusal is a bad point."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from engine.bench.measure import Meter
from engine.errors import EngineError
from engine.measurements.tuning import Budget, Knobs, Outcome
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

WARM_UP_TOKENS = 32
# Cells beside prompt and answer.
SPARE_CELLS = 64

Admit = Callable[[LoadSettings], AbstractContextManager[None]]


async def trial(settings: LoadSettings, knobs: Knobs, budget: Budget, admit: Admit, limit_s: float) -> Outcome:
    """Measure `settings` with `knobs`, memory asked for first. Never raises for what a setting does wrong.

    `limit_s` bounds it: whoever takes longer hangs, or is too slow to matter.
    """
    started = time.monotonic()
    wanted = trial_settings(knobs.apply(settings), budget)
    try:
        with admit(wanted):
            async with asyncio.timeout(limit_s):
                prefill, decode = await _measured(wanted, budget)
    except TimeoutError:
        return Outcome(failure=f"no end after {limit_s:.0f} s", cost_s=time.monotonic() - started)
    except EngineError as error:
        return Outcome(failure=str(error), cost_s=time.monotonic() - started)
    return Outcome(prefill_tok_s=prefill, decode_tok_s=decode, cost_s=time.monotonic() - started)


def trial_settings(settings: LoadSettings, budget: Budget) -> LoadSettings:
    """As small a cache as the trial needs, one sequence, nothing kept."""
    cells = budget.prompt + budget.answer + SPARE_CELLS
    return msgspec.structs.replace(
        settings, n_ctx=cells, kv_cells=cells, n_parallel=1, cache_ram_bytes=0, cache_disk_bytes=0, cache_dir=None
    )


async def _measured(settings: LoadSettings, budget: Budget) -> tuple[float, float]:
    """The best prefill and decode in tokens/s: what else runs on the machine only ever slows a trial."""
    runner = await RunnerProcess.start("llama", settings.path)
    try:
        facts = await runner.load(settings)
        meter = Meter(runner, facts.n_vocab, lambda _: None, tokens=budget.answer)
        await meter.run(WARM_UP_TOKENS, 2)
        if budget.copying:
            speed = max([await meter.copy_speed() for _ in range(budget.repeats)])
            return speed, speed
        rows = [await meter.timed(budget.prompt) for _ in range(budget.repeats)]
    except BaseException:
        runner.kill()
        raise
    finally:
        await runner.stop()
    return max(r.prefill_tok_s for r in rows), max(r.decode_tok_s for r in rows)


async def proof(settings: LoadSettings, admit: Admit, limit_s: float) -> str | None:
    """Load exactly these settings, as the server would, and generate; why not, if that fails."""
    try:
        with admit(settings):
            async with asyncio.timeout(limit_s):
                runner = await RunnerProcess.start("llama", settings.path)
                try:
                    facts = await runner.load(settings)
                    await Meter(runner, facts.n_vocab, lambda _: None, tokens=2).timed(WARM_UP_TOKENS)
                except BaseException:
                    runner.kill()
                    raise
                finally:
                    await runner.stop()
    except TimeoutError:
        return f"no end after {limit_s:.0f} s"
    except EngineError as error:
        return str(error)
    return None

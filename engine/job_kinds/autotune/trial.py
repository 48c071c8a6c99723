"""One trial: load in a runner of its own, measure, stop. A crash, a hang or a refusal is a bad point."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial

import msgspec

from devices.errors import TesseraError
from engine.energy.meter import EnergyMeter, Unmetered
from engine.job_kinds.bench.measure import Meter, Timed
from engine.message_catalog.reasons import because
from engine.placement.measurements.tuning import Budget, Knobs, Outcome
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

WARM_UP_TOKENS = 32
# Cells beside prompt and answer.
SPARE_CELLS = 64
# Joules are counted over at least so many seconds: meters and the processors' clocks tick in hundredths of one. A
# run that is over at once is repeated, but no more often than this.
ENOUGH_S = 3.0
MOST_RUNS = 12

Admit = Callable[[LoadSettings], AbstractContextManager[None]]


async def trial(
    settings: LoadSettings,
    knobs: Knobs,
    budget: Budget,
    admit: Admit,
    limit_s: float,
    energy: EnergyMeter | None = None,
) -> Outcome:
    """Measure `settings` with `knobs`, memory asked for first. Never raises for what a setting does wrong.

    `limit_s` bounds it: whoever takes longer hangs, or is too slow to matter. `energy` counts joules where the
    budget asks for them.
    """
    started = time.monotonic()
    wanted = trial_settings(knobs.apply(settings), budget)
    try:
        with admit(wanted):
            async with asyncio.timeout(limit_s):
                found = await _measured(wanted, budget, energy if budget.joules else None)
    except TimeoutError:
        return Outcome(failure=f"no end after {limit_s:.0f} s", cost_s=time.monotonic() - started)
    except TesseraError as error:
        return Outcome(failure=str(error), cost_s=time.monotonic() - started)
    return msgspec.structs.replace(found, cost_s=time.monotonic() - started)


def trial_settings(settings: LoadSettings, budget: Budget) -> LoadSettings:
    """As small a cache as the trial needs, one sequence, nothing kept."""
    cells = budget.prompt + budget.answer + SPARE_CELLS
    return msgspec.structs.replace(
        settings, n_ctx=cells, kv_cells=cells, n_parallel=1, cache_ram_bytes=0, cache_disk_bytes=0, cache_dir=None
    )


async def _measured(settings: LoadSettings, budget: Budget, energy: EnergyMeter | None) -> Outcome:
    """The best prefill and decode in tokens/s: what else runs on the machine only ever slows a trial.

    Raises: Unmetered.
    """
    runner = await RunnerProcess.start("llama", settings.path)
    try:
        facts = await runner.load(settings)
        meter = Meter(runner, facts.n_vocab, lambda _: None, tokens=budget.answer)
        warm = await meter.run(WARM_UP_TOKENS, 2)
        once: Callable[[], Awaitable[Timed]]
        once = meter.copied if budget.copying else partial(meter.timed, budget.prompt)
        joules: list[float] = []
        if energy is None:
            rows = [await once() for _ in range(budget.repeats)]
        else:
            if warm.timings.step_time is not None:
                energy.warm(runner.pid, warm.timings.step_time)
            rows, joules = await _metered(runner, once, budget, energy, settings.devices)
    except BaseException:
        runner.kill()
        raise
    finally:
        await runner.stop()
    decode = max(r.decode_tok_s for r in rows)
    return Outcome(
        prefill_tok_s=decode if budget.copying else max(r.prefill_tok_s for r in rows),
        decode_tok_s=decode,
        tokens_per_joule=len(rows) * (budget.answer + 1) / sum(joules) if joules else None,
        joules=tuple(joules),
    )


async def _metered(
    runner: RunnerProcess,
    once: Callable[[], Awaitable[Timed]],
    budget: Budget,
    energy: EnergyMeter,
    devices: tuple[str, ...],
) -> tuple[list[Timed], list[float]]:
    """Runs and the joules of each. Raises: Unmetered."""
    rows: list[Timed] = []
    joules: list[float] = []
    begun = time.monotonic()
    while len(rows) < budget.repeats or (time.monotonic() - begun < ENOUGH_S and len(rows) < MOST_RUNS):
        async with energy.during(runner.pid, devices):
            rows.append(await once())
        step_time = rows[-1].step_time
        if step_time is not None:
            joules.append(energy.joules(runner.pid, step_time, devices))
    if sum(joules) <= 0:
        raise Unmetered(because("nothing_beyond_rest"))
    return rows, joules


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
    except TesseraError as error:
        return str(error)
    return None

"""The whole search for one model and context length: space, rounds, record, proof, report."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import msgspec

from devices.errors import TesseraError
from engine.core.errors import EnvironmentFault
from engine.energy.meter import EnergyMeter, Unmetered
from engine.job_kinds.autotune.journal import Journal
from engine.job_kinds.autotune.search import OutOfTime, Search
from engine.job_kinds.autotune.space import MAX_SLOWDOWN, Dimension, cost, finite, noise, worth
from engine.job_kinds.bench.measure import COPIED_TOKENS, Meter, Timed
from engine.message_catalog.reasons import Reason, because
from engine.placement.measurements import (
    ANSWER_TOKENS,
    Goal,
    TrialOutcome,
    TrialSize,
    TunableSettings,
    TunedSetting,
    TuneReport,
    TuneTrial,
)
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

# One trial: load in a separate runner, measure, stop. A crash, a hang or an error is a failed point.

WARM_UP_TOKENS = 32
# KV cells in addition to prompt and response.
SPARE_CELLS = 64
# Minimum seconds for counting joules: meters and CPU clocks have a resolution of hundredths of a second. A shorter
# run is repeated, but at most this often.
ENOUGH_S = 3.0
MOST_RUNS = 12

Admit = Callable[[LoadSettings], AbstractContextManager[None]]


async def trial(
    settings: LoadSettings,
    knobs: TunableSettings,
    budget: TrialSize,
    admit: Admit,
    limit_s: float,
    energy: EnergyMeter | None = None,
) -> TrialOutcome:
    """Measure `settings` with `knobs`, after reserving memory. Never raises for errors caused by a setting.

    `limit_s` is a timeout: a slower trial hangs or is too slow to be useful. `energy` measures joules if the budget
    asks for them.
    """
    started = time.monotonic()
    trial_load = trial_settings(knobs.apply(settings), budget)
    try:
        with admit(trial_load):
            async with asyncio.timeout(limit_s):
                outcome = await _measured(trial_load, budget, energy if budget.joules else None)
    except TimeoutError:
        return TrialOutcome(failure=f"no end after {limit_s:.0f} s", cost_s=time.monotonic() - started)
    except TesseraError as error:
        return TrialOutcome(failure=str(error), cost_s=time.monotonic() - started)
    return msgspec.structs.replace(outcome, cost_s=time.monotonic() - started)


def trial_settings(settings: LoadSettings, budget: TrialSize) -> LoadSettings:
    """Settings with the smallest KV cache for the trial, one sequence, and no stored prefixes."""
    cells = budget.prompt + budget.answer + SPARE_CELLS
    return msgspec.structs.replace(
        settings, n_ctx=cells, kv_cells=cells, n_parallel=1, cache_ram_bytes=0, cache_disk_bytes=0, cache_dir=None
    )


async def _measured(settings: LoadSettings, budget: TrialSize, energy: EnergyMeter | None) -> TrialOutcome:
    """The best prefill and decode speeds in tokens/s, because other load only slows a trial.

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
    return TrialOutcome(
        prefill_tok_s=decode if budget.copying else max(r.prefill_tok_s for r in rows),
        decode_tok_s=decode,
        tokens_per_joule=len(rows) * (budget.answer + 1) / sum(joules) if joules else None,
        joules=tuple(joules),
    )


async def _metered(
    runner: RunnerProcess,
    once: Callable[[], Awaitable[Timed]],
    budget: TrialSize,
    energy: EnergyMeter,
    devices: tuple[str, ...],
) -> tuple[list[Timed], list[float]]:
    """Runs and the joules of each. Raises: Unmetered."""
    rows: list[Timed] = []
    joules: list[float] = []
    started_at = time.monotonic()
    while len(rows) < budget.repeats or (time.monotonic() - started_at < ENOUGH_S and len(rows) < MOST_RUNS):
        async with energy.during(runner.pid, devices):
            rows.append(await once())
        step_time = rows[-1].step_time
        if step_time is not None:
            joules.append(energy.joules(runner.pid, step_time, devices))
    if sum(joules) <= 0:
        raise Unmetered(because("nothing_beyond_rest"))
    return rows, joules


async def proof(settings: LoadSettings, admit: Admit, limit_s: float) -> str | None:
    """Load exactly these settings, as the server would, and generate. Returns the reason if that fails."""
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


# A point may take this much longer than the current settings before it counts as hanging.
PATIENCE = 5.0
SHORTEST_LIMIT_S = 20.0
FIRST_LIMIT_S = 300.0
# Maximum prompt of the first round: its effects show in a few ubatches.
SHORT_PROMPT = 512
# Maximum lengths of the adaptive drafter; 0 disables speculative decoding.
DRAFTS = (16, 0, 2, 3, 4, 8)
Step = Callable[[str | Reason, int], None]


class NothingWorks(EnvironmentFault):
    """None of the tested settings could load the model; `reason` is the last error."""

    code = "nothing_works"

    def __init__(self, reason: str) -> None:
        super().__init__(because("nothing_works", why=reason))
        self.reason = reason


def rounds_for(prompt_tokens: int, goal: Goal = "speed") -> tuple[TrialSize, ...]:
    """A short round for many points and a long one for the best; loading takes most of a trial.

    Joules of prefill and decode cannot be separated. They are therefore measured over whole requests, or over a
    smaller request with the same ratio of both.
    """
    short = min(prompt_tokens, SHORT_PROMPT)
    if goal == "energy":
        part = max(1, short // 2)
        answer = max(8, round(ANSWER_TOKENS * part / prompt_tokens))
        return (
            TrialSize(prompt=part, answer=answer, repeats=2, joules=True),
            TrialSize(prompt=prompt_tokens, answer=ANSWER_TOKENS, repeats=3, joules=True),
        )
    return (
        TrialSize(prompt=short, answer=8, repeats=2),
        TrialSize(prompt=prompt_tokens, answer=32, repeats=3),
    )


class Tuner:
    """Runs trials for a search, stores them in a journal, and respects a time limit in seconds."""

    def __init__(
        self,
        settings: LoadSettings,
        journal: Journal,
        admit: Admit,
        limit_s: float,
        step: Step,
        energy: EnergyMeter | None = None,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._admit = admit
        self._deadline = time.monotonic() + limit_s
        self._step = step
        self._energy = energy
        self._slowest: dict[TrialSize, float] = {}
        self.count = 0

    async def measure(self, knobs: TunableSettings, budget: TrialSize) -> TrialOutcome:
        """Run one trial, or return its recorded result. Raises: OutOfTime."""
        recorded = self._journal.recorded(knobs, budget)
        self.count += 1
        if recorded is not None:
            self._note(budget, recorded)
            return recorded
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise OutOfTime
        self._step(_describe(knobs), self.count)
        first = self._slowest.get(budget)
        limit = FIRST_LIMIT_S if first is None else max(SHORTEST_LIMIT_S, PATIENCE * first)
        self._journal.begin(knobs, budget)
        outcome = await trial(self._settings, knobs, budget, self._admit, min(limit, left_s + 1), self._energy)
        if outcome.failure is not None and time.monotonic() >= self._deadline:
            raise OutOfTime  # stopped by the time limit of the search: nothing is known about this point
        self._journal.end(TuneTrial(knobs=knobs, budget=budget, outcome=outcome))
        self._note(budget, outcome)
        return outcome

    def _note(self, budget: TrialSize, outcome: TrialOutcome) -> None:
        if outcome.failure is None:
            self._slowest.setdefault(budget, outcome.cost_s)


async def tune(
    settings: LoadSettings,
    base: TunableSettings,
    dims: Sequence[Dimension],
    *,
    model: str,
    prompt_tokens: int,
    journal_path: Path,
    admit: Admit,
    limit_s: float,
    step: Step,
    drafts: bool = False,
    energy: EnergyMeter | None = None,
) -> TuneReport:
    """Search, verify that the winner loads as the server would load it, and report.

    `settings` are the server's, `base` the knobs in use. With `drafts` the draft length is also tuned, which needs
    real weights (a dummy-weight model has none). With `energy`, which knows the idle power, the search minimizes
    joules instead of seconds. The journal is removed when the search is complete.

    Raises: NothingWorks.
    """
    goal: Goal = "speed" if energy is None else "energy"
    journal = Journal(journal_path, model)
    tuner = Tuner(settings, journal, admit, limit_s, step, energy)
    search = Search(base, dims, prompt_tokens, tuner.measure, goal)
    await search.run(rounds_for(prompt_tokens, goal))
    best, refused = None, "none was tried in the time given"
    draft: tuple[int, TunedSetting] | None = None
    for knobs in search.ranked():
        reason = await proof(knobs.apply(settings), admit, FIRST_LIMIT_S)
        if reason is None:
            best = knobs
            draft = await _draft_length(tuner, knobs, goal) if drafts and search.complete else None
            break
        refused = reason
    if best is None:
        failures = [t.outcome.failure for t in _trials_for(journal, goal) if t.outcome.failure]
        raise NothingWorks(failures[-1] if failures else refused)
    trials = _trials_for(journal, goal)
    if search.complete:
        journal.clear()
    outcome = search.results[best]
    return TuneReport(
        model=model,
        prompt_tokens=prompt_tokens,
        best=msgspec.structs.replace(best, max_draft=draft[0]) if draft else best,
        turn_s=search.turn_s(best),
        default=base,
        default_turn_s=finite(search.turn_s(base)),
        prefill_tok_s=outcome.prefill_tok_s,
        decode_tok_s=outcome.decode_tok_s,
        choices=(*search.choices(best), *([draft[1]] if draft else [])),
        trials=trials,
        cost_s=sum(t.outcome.cost_s for t in trials),
        complete=search.complete,
        measured_at=time.time(),
        stand_in=not drafts,
        goal=goal,
        tokens_per_joule=outcome.tokens_per_joule,
        default_tokens_per_joule=search.results[base].tokens_per_joule if base in search.results else None,
        joules_noise=search.joules_noise,
    )


def _trials_for(journal: Journal, goal: Goal) -> tuple[TuneTrial, ...]:
    """Trials of a search with this goal; trials for the other goal are ignored."""
    return tuple(t for t in journal.trials if t.budget.joules == (goal == "energy"))


async def _draft_length(tuner: Tuner, knobs: TunableSettings, goal: Goal) -> tuple[int, TunedSetting] | None:
    """The longest draft length that pays on repetitive text; None if the time is over."""
    budget = TrialSize(prompt=3 * COPIED_TOKENS, answer=48, repeats=2, copying=True, joules=goal == "energy")
    outcomes: dict[int, TrialOutcome] = {}
    try:
        for length in DRAFTS:
            outcome = await tuner.measure(msgspec.structs.replace(knobs, max_draft=length), budget)
            if outcome.failure is None:
                outcomes[length] = outcome
    except OutOfTime:
        return None
    if len(outcomes) < 2:
        return None
    first, second, *_ = _by_cost(outcomes, goal)
    by_energy = goal == "energy"
    choice = TunedSetting(
        name="longest guess",
        value=str(first),
        turn_s=outcomes[first].turn_s(0),
        against=str(second),
        against_turn_s=outcomes[second].turn_s(0),
        of="an answer that repeats",
        turn_j=outcomes[first].turn_j() if by_energy else None,
        against_turn_j=outcomes[second].turn_j() if by_energy else None,
    )
    return first, choice


def _by_cost(outcomes: dict[int, TrialOutcome], goal: Goal) -> list[int]:
    """Draft lengths, best first. The first of DRAFTS is in use; only clearly fewer joules replace it."""
    lengths = sorted(outcomes, key=lambda n: (cost(outcomes[n], 0, goal), n))
    in_use = outcomes.get(DRAFTS[0])
    if goal == "speed" or in_use is None:
        return lengths
    slowest_s, deviation = MAX_SLOWDOWN * in_use.turn_s(0), noise(outcomes.values())

    def counted(length: int) -> tuple[bool, float]:
        mine = outcomes[length]
        share = 1.0 if mine is in_use else worth(mine, in_use, deviation)
        return mine.turn_s(0) > slowest_s, mine.turn_j() / share

    return sorted(lengths, key=counted)


def _describe(knobs: TunableSettings) -> str:
    where = "+".join(knobs.devices) or "processor"
    return (
        f"{where}, {knobs.n_threads} threads, ubatch {knobs.n_ubatch}, flash attention {knobs.flash_attn}, "
        f"cache {knobs.kv_type}, repack {'on' if knobs.repack else 'off'}, tiles {'on' if knobs.tiles else 'off'}"
    )

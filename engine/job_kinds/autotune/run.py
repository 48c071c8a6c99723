"""The whole search for one model and context length: space, rounds, record, proof, report."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from engine.core.errors import EnvironmentFault
from engine.energy.meter import EnergyMeter
from engine.job_kinds.autotune.goal import MAX_SLOWDOWN, cost, finite, noise, worth
from engine.job_kinds.autotune.journal import Journal
from engine.job_kinds.autotune.search import OutOfTime, Search
from engine.job_kinds.autotune.space import Dimension
from engine.job_kinds.autotune.trial import Admit, proof, trial
from engine.job_kinds.bench.measure import COPIED_TOKENS
from engine.message_catalog.reasons import Reason, because
from engine.placement.measurements.tuning import (
    ANSWER_TOKENS,
    Budget,
    Choice,
    Goal,
    Knobs,
    Outcome,
    Trial,
    TuneReport,
)
from engine.runner.protocol import LoadSettings

# A point may take this much longer than the settings in use before it counts as hanging.
PATIENCE = 5.0
SHORTEST_LIMIT_S = 20.0
FIRST_LIMIT_S = 300.0
# The first round reads at most so much: what it decides shows in a few ubatches.
SHORT_PROMPT = 512
# The adaptive drafter never exceeds these; 0 guesses nothing.
DRAFTS = (16, 0, 4, 8)
Step = Callable[[str | Reason, int], None]


class NothingWorks(EnvironmentFault):
    """Not one of the settings tried could load the model; `reason` is what the last one said."""

    code = "nothing_works"

    def __init__(self, reason: str) -> None:
        super().__init__(because("nothing_works", why=reason))
        self.reason = reason


def rounds_for(prompt_tokens: int, goal: Goal = "speed") -> tuple[Budget, ...]:
    """A short round for many points, a long one for the best: most of a trial is loading, so no more rounds.

    Joules of reading and writing cannot be told apart, so they are counted of whole turns, or of a part of one with
    as much of both.
    """
    short = min(prompt_tokens, SHORT_PROMPT)
    if goal == "energy":
        part = max(1, short // 2)
        answer = max(8, round(ANSWER_TOKENS * part / prompt_tokens))
        return (
            Budget(prompt=part, answer=answer, repeats=2, joules=True),
            Budget(prompt=prompt_tokens, answer=ANSWER_TOKENS, repeats=3, joules=True),
        )
    return (
        Budget(prompt=short, answer=8, repeats=2),
        Budget(prompt=prompt_tokens, answer=32, repeats=3),
    )


class Tuner:
    """Runs trials for a search, remembers them in a journal, and keeps to a time limit in seconds."""

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
        self._slowest: dict[Budget, float] = {}
        self.count = 0

    async def measure(self, knobs: Knobs, budget: Budget) -> Outcome:
        """One trial, from the journal if it was done before. Raises: OutOfTime."""
        recorded = self._journal.recorded(knobs, budget)
        self.count += 1
        if recorded is not None:
            self._note(budget, recorded)
            return recorded
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime
        self._step(_words(knobs), self.count)
        first = self._slowest.get(budget)
        limit = FIRST_LIMIT_S if first is None else max(SHORTEST_LIMIT_S, PATIENCE * first)
        self._journal.begin(knobs, budget)
        outcome = await trial(self._settings, knobs, budget, self._admit, min(limit, left + 1), self._energy)
        if outcome.failure is not None and time.monotonic() >= self._deadline:
            raise OutOfTime  # cut off by our own limit: nothing is known about this point
        self._journal.end(Trial(knobs=knobs, budget=budget, outcome=outcome))
        self._note(budget, outcome)
        return outcome

    def _note(self, budget: Budget, outcome: Outcome) -> None:
        if outcome.failure is None:
            self._slowest.setdefault(budget, outcome.cost_s)


async def tune(
    settings: LoadSettings,
    base: Knobs,
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
    """Search, prove that the winner loads as the server would load it, and report.

    `settings` are the server's, `base` the knobs in use; with `drafts` the length of guesses is tried too, which
    only real weights can tell (a stand-in has none). With `energy`, which knows the computer's rest, the fewest
    joules are looked for instead of the fewest seconds. The journal is removed when the search is complete.
    Raises: NothingWorks.
    """
    goal: Goal = "speed" if energy is None else "energy"
    journal = Journal(journal_path, model)
    tuner = Tuner(settings, journal, admit, limit_s, step, energy)
    search = Search(base, dims, prompt_tokens, tuner.measure, goal)
    await search.run(rounds_for(prompt_tokens, goal))
    best, refused = None, "none was tried in the time given"
    draft: tuple[int, Choice] | None = None
    for knobs in search.ranked():
        reason = await proof(knobs.apply(settings), admit, FIRST_LIMIT_S)
        if reason is None:
            best = knobs
            draft = await _draft_length(tuner, knobs, goal) if drafts and search.complete else None
            break
        refused = reason
    if best is None:
        failures = [t.outcome.failure for t in _own(journal, goal) if t.outcome.failure]
        raise NothingWorks(failures[-1] if failures else refused)
    trials = _own(journal, goal)
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


def _own(journal: Journal, goal: Goal) -> tuple[Trial, ...]:
    """Trials of a search with this goal; others' are no part of it."""
    return tuple(t for t in journal.trials if t.budget.joules == (goal == "energy"))


async def _draft_length(tuner: Tuner, knobs: Knobs, goal: Goal) -> tuple[int, Choice] | None:
    """The longest guess that pays where a text repeats itself; None when the time is over."""
    budget = Budget(prompt=3 * COPIED_TOKENS, answer=48, repeats=2, copying=True, joules=goal == "energy")
    found: dict[int, Outcome] = {}
    try:
        for length in DRAFTS:
            outcome = await tuner.measure(msgspec.structs.replace(knobs, max_draft=length), budget)
            if outcome.failure is None:
                found[length] = outcome
    except OutOfTime:
        return None
    if len(found) < 2:  # noqa: PLR2004 - nothing to choose between
        return None
    first, second, *_ = _by_cost(found, goal)
    by_energy = goal == "energy"
    choice = Choice(
        name="longest guess",
        value=str(first),
        turn_s=found[first].turn_s(0),
        against=str(second),
        against_turn_s=found[second].turn_s(0),
        of="an answer that repeats",
        turn_j=found[first].turn_j() if by_energy else None,
        against_turn_j=found[second].turn_j() if by_energy else None,
    )
    return first, choice


def _by_cost(found: dict[int, Outcome], goal: Goal) -> list[int]:
    """Lengths of guesses, best first. The first of DRAFTS is in use; only clearly fewer joules replace it."""
    lengths = sorted(found, key=lambda n: (cost(found[n], 0, goal), n))
    in_use = found.get(DRAFTS[0])
    if goal == "speed" or in_use is None:
        return lengths
    slowest_s, deviation = MAX_SLOWDOWN * in_use.turn_s(0), noise(found.values())

    def counted(length: int) -> tuple[bool, float]:
        mine = found[length]
        share = 1.0 if mine is in_use else worth(mine, in_use, deviation)
        return mine.turn_s(0) > slowest_s, mine.turn_j() / share

    return sorted(lengths, key=counted)


def _words(knobs: Knobs) -> str:
    where = "+".join(knobs.devices) or "processor"
    return (
        f"{where}, {knobs.n_threads} threads, ubatch {knobs.n_ubatch}, flash attention {knobs.flash_attn}, "
        f"cache {knobs.kv_type}, repack {'on' if knobs.repack else 'off'}, tiles {'on' if knobs.tiles else 'off'}"
    )

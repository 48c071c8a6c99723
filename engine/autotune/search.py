"""Successive halving over settings: many points briefly, the best quarter longer.

The first round looks at the settings in use and at every single change of them, then at combinations of the
changes that helped. Pure but for `measure`: the same answers give the same search, so one that was interrupted
goes on where it was when `measure` remembers.
"""

import itertools
import math
from collections.abc import Awaitable, Callable, Sequence

from engine.autotune.space import Dimension, Level, changed, valid
from engine.measurements.tuning import Budget, Choice, Knobs, Outcome

# One in so many points goes on to the next round. Source: Li et al., "Hyperband", 2018 (3 or 4 there).
ETA = 4
# The best points differ by less than the noise of one short trial. Measured: docs/log.md, autotune against a grid.
LEAST_KEPT = 3
# A level within this of the best one of its dimension is combined with the others: rounds are short and noisy.
NEAR = 1.05
MOST_COMBINATIONS = 4
NEARLY = 1.25
MOST_REFINED = 3
# A change must gain this to replace what is in use; below it is noise. Lossy ones must gain more.
WORTH = 0.99
LOSSY_WORTH = 0.95

Measure = Callable[[Knobs, Budget], Awaitable[Outcome]]


class OutOfTime(Exception):
    """Raised by `measure` when the time for the whole search is over."""


class Search:
    """One search. `results` hold for each point what its longest round found."""

    def __init__(self, base: Knobs, dims: Sequence[Dimension], prompt: int, measure: Measure) -> None:
        self._base = base
        self._dims = dims
        self._prompt = prompt
        self._measure = measure
        self.results: dict[Knobs, Outcome] = {}
        self._short: dict[Knobs, Outcome] = {}
        self._rounds: dict[Knobs, int] = {}
        self.complete = False

    async def run(self, rounds: Sequence[Budget]) -> None:
        """Search; ends early, with what is known, when time is over."""
        try:
            await self._look(rounds[0])
            for number, budget in enumerate(rounds[1:], start=1):
                await self._round(number, self._survivors(), budget)
            self.complete = True
        except OutOfTime:
            return

    def ranked(self) -> list[Knobs]:
        """Points that work, best first: those of later rounds before those that fell out earlier."""
        good = [k for k in self.results if math.isfinite(self.turn_s(k))]
        return sorted(good, key=lambda k: (-self._rounds[k], self._counted(k)))

    def turn_s(self, knobs: Knobs) -> float:
        """Seconds of a turn in the longest round of a point."""
        return self.results[knobs].turn_s(self._prompt) if knobs in self.results else math.inf

    def choices(self, best: Knobs) -> tuple[Choice, ...]:
        """For each dimension the value of `best`, and the next best value tried in the first round."""
        found = []
        for dim in self._dims:
            by_level: dict[str, float] = {}
            for knobs, outcome in self._short.items():
                words = dim.words(knobs)
                by_level[words] = min(by_level.get(words, math.inf), outcome.turn_s(self._prompt))
            mine = dim.words(best)
            others = sorted((s, w) for w, s in by_level.items() if w != mine)
            if mine in by_level:
                against = others[0] if others else (None, None)
                found.append(
                    Choice(
                        name=dim.name,
                        value=mine,
                        turn_s=by_level[mine],
                        against=against[1],
                        against_turn_s=against[0],
                    )
                )
        return tuple(found)

    def _counted(self, knobs: Knobs) -> float:
        """Seconds with the handicap that a point carries against the settings in use."""
        if knobs == self._base:
            return self.turn_s(knobs)
        lossy = knobs.kv_type != self._base.kv_type and knobs.kv_type not in ("f16", "bf16", "f32")
        return self.turn_s(knobs) / (LOSSY_WORTH if lossy else WORTH)

    async def _look(self, budget: Budget) -> None:
        """The settings in use, each single change, then the changes that helped together."""
        await self._try(self._base, budget)
        helped: list[Sequence[Level | None]] = []
        for dim in self._dims:
            single = {i: changed(self._base, level) for i, level in enumerate(dim.levels)}
            for knobs in single.values():
                await self._try(knobs, budget)
            times = {i: self._short_s(k) for i, k in single.items()}
            best = min(times.values())
            near = sorted((t, i) for i, t in times.items() if t <= NEAR * best)
            better = [dim.levels[i] for _, i in near if single[i] != self._base][:2]
            as_good = self._short_s(self._base) <= NEAR * best
            helped.append([*better, None] if as_good or not better else better)
        await self._combine(helped, budget)
        await self._refine(budget)

    async def _combine(self, helped: Sequence[Sequence[Level | None]], budget: Budget) -> None:
        """Changes that looked good alone, together: the most promising products of their gains first."""
        base_s = self._short_s(self._base)
        made: dict[Knobs, float] = {}
        for levels in itertools.islice(itertools.product(*helped), 20_000):
            chosen = [level for level in levels if level is not None]
            if len(chosen) < 2:  # noqa: PLR2004 - single changes are known
                continue
            knobs, promise = self._base, 1.0
            for level in chosen:
                knobs = changed(knobs, level)
                alone = self._short_s(changed(self._base, level))
                promise *= alone / base_s if math.isfinite(alone) and math.isfinite(base_s) else 1.0
            if valid(knobs) and knobs not in self._short:
                made[knobs] = min(promise, made.get(knobs, math.inf))
        for knobs in sorted(made, key=lambda k: made[k])[:MOST_COMBINATIONS]:
            await self._try(knobs, budget)

    async def _refine(self, budget: Budget) -> None:
        """Around the best point: levels that were nearly as good alone may be better in company."""
        best = min(self._short, key=self._short_s)
        beside: dict[Knobs, float] = {}
        for dim in self._dims:
            alone = [self._short_s(changed(self._base, level)) for level in dim.levels]
            for level, seconds in zip(dim.levels, alone, strict=True):
                if seconds <= NEARLY * min(alone):
                    beside.setdefault(changed(best, level), seconds / min(alone))
        unknown = [k for k in beside if k not in self._short]
        for knobs in sorted(unknown, key=lambda k: beside[k])[:MOST_REFINED]:
            await self._try(knobs, budget)

    def _survivors(self) -> list[Knobs]:
        """The best quarter of the last round, three at least, and the settings in use."""
        last = max(self._rounds.values(), default=0)
        alive = [k for k in self.ranked() if self._rounds[k] == last]
        kept = alive[: max(LEAST_KEPT, math.ceil(len(alive) / ETA))]
        if self._base not in kept and math.isfinite(self.turn_s(self._base)):
            kept.append(self._base)
        return kept

    async def _round(self, number: int, points: Sequence[Knobs], budget: Budget) -> None:
        for knobs in points:
            outcome = await self._measure(knobs, budget)
            self.results[knobs] = outcome
            self._rounds[knobs] = number

    async def _try(self, knobs: Knobs, budget: Budget) -> None:
        """Measure in the first round, once."""
        if knobs in self._short or not valid(knobs):
            return
        outcome = await self._measure(knobs, budget)
        self.results[knobs] = self._short[knobs] = outcome
        self._rounds[knobs] = 0

    def _short_s(self, knobs: Knobs) -> float:
        return self._short[knobs].turn_s(self._prompt) if knobs in self._short else math.inf

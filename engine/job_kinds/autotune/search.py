"""Successive halving over settings: many points briefly, the best quarter longer.

The first round measures the settings in use and every single change, then combinations of the changes that helped.
Pure except for `measure`: equal results give an equal search, so an interrupted search continues if `measure` uses
recorded results.
"""

import itertools
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from engine.job_kinds.autotune.space import (
    MAX_SLOWDOWN,
    Dimension,
    Level,
    changed,
    cost,
    finite,
    noise,
    valid,
    worth,
)
from engine.placement.measurements import Goal, TrialOutcome, TrialSize, TunableSettings, TunedSetting

# One in this many points continues to the next round. Source: Li et al., "Hyperband", 2018 (3 or 4 there).
ETA = 4
# The best points differ by less than the noise of a short trial. Measured: log-archive.md, autotune against a grid.
MIN_SURVIVORS = 3
# Levels within this factor of the best one are combined with other dimensions: rounds are short and noisy.
NEAR = 1.05
MOST_COMBINATIONS = 4
NEARLY = 1.25
MOST_REFINED = 3

Measure = Callable[[TunableSettings, TrialSize], Awaitable[TrialOutcome]]


class OutOfTime(Exception):
    """Raised by `measure` when the time for the whole search is over."""


class Search:
    """One search. `results` hold the outcome of each point's longest round."""

    def __init__(
        self, base: TunableSettings, dims: Sequence[Dimension], prompt: int, measure: Measure, goal: Goal = "speed"
    ) -> None:
        self._base = base
        self._dims = dims
        self._prompt = prompt
        self._measure = measure
        self._goal: Goal = goal
        self.results: dict[TunableSettings, TrialOutcome] = {}
        self._short: dict[TunableSettings, TrialOutcome] = {}
        self._rounds: dict[TunableSettings, int] = {}
        self.complete = False

    async def run(self, rounds: Sequence[TrialSize]) -> None:
        """Run the search; ends early, with the results so far, when the time is over."""
        try:
            await self._search(rounds[0])
            for number, budget in enumerate(rounds[1:], start=1):
                await self._round(number, self._survivors(), budget)
            self.complete = True
        except OutOfTime:
            return

    def ranked(self) -> list[TunableSettings]:
        """Points that work, best first; points of later rounds come before those that were dropped earlier."""
        good = [k for k in self.results if math.isfinite(self._cost(k, self.results))]
        order = sorted(good, key=lambda k: (-self._rounds[k], self._counted(k)))
        return self._plainest_first(order) if self._goal == "energy" and order else order

    def _plainest_first(self, order: list[TunableSettings]) -> list[TunableSettings]:
        """Move the simplest point to the front that is not clearly worse than the best one.

        Simplest means the fewest changes, then the fewest seconds. Changes supported only by noise are therefore
        dropped.
        """
        best = order[0]
        if best == self._base or self._base not in order:
            return order
        mine, deviation = self.results[best], self._noise(self._rounds[best])
        alike = [k for k in order[: order.index(self._base)] if self._rounds[k] == self._rounds[best]]
        near = [
            k for k in alike if mine.turn_j() >= worth(mine, self.results[k], deviation) * self.results[k].turn_j()
        ]
        plainest = min(near, key=lambda k: (self._changes(k), self.turn_s(k)))
        return [plainest, *(k for k in order if k != plainest)]

    def _changes(self, knobs: TunableSettings) -> int:
        return sum(getattr(knobs, f) != getattr(self._base, f) for f in knobs.__struct_fields__)

    def turn_s(self, knobs: TunableSettings) -> float:
        """Seconds per request in the longest round of a point."""
        return self.results[knobs].turn_s(self._prompt) if knobs in self.results else math.inf

    def choices(self, best: TunableSettings) -> tuple[TunedSetting, ...]:
        """For each dimension, the value of `best` and the next best value of the first round."""
        settings = []
        for dim in self._dims:
            by_level: dict[str, TunableSettings] = {}
            for knobs in self._short:
                words = dim.words(knobs)
                if words not in by_level or self._price(knobs) < self._price(by_level[words]):
                    by_level[words] = knobs
            mine = dim.words(best)
            others = sorted((self._price(k), words) for words, k in by_level.items() if words != mine)
            if mine in by_level:
                against = others[0][1] if others else None
                settings.append(self._choice(dim.name, mine, by_level[mine], against, by_level.get(against or "")))
        return tuple(settings)

    def _price(self, knobs: TunableSettings) -> tuple[float, float]:
        return self._short_cost(knobs), self._short[knobs].turn_s(self._prompt)

    def _choice(
        self, name: str, value: str, mine: TunableSettings, against: str | None, other: TunableSettings | None
    ) -> TunedSetting:
        """A value and its cheapest point, compared with the next best ones."""
        choice = TunedSetting(
            name=name,
            value=value,
            turn_s=self._short[mine].turn_s(self._prompt),
            against=against,
            against_turn_s=finite(self._short[other].turn_s(self._prompt)) if other else None,
        )
        if self._goal == "speed":
            return choice
        turn_j, other_j = self._short[mine].turn_j(), self._short[other].turn_j() if other else math.inf
        note = ""
        if other_j < turn_j:
            note = "no clear gain" if math.isfinite(self._short_cost(other or mine)) else "too slow"
        return msgspec.structs.replace(choice, turn_j=turn_j, against_turn_j=finite(other_j), note=note)

    @property
    def joules_noise(self) -> float | None:
        """Standard deviation of one run's joules in the last round, as a fraction; None without joules."""
        last = max(self._rounds.values(), default=0)
        return self._noise(last) if self._goal == "energy" else None

    def _noise(self, number: int) -> float:
        """Noise of a round, or of all rounds if the round has few points."""
        outcomes = [self.results[k] for k, n in self._rounds.items() if n == number]
        return noise(outcomes if len(outcomes) >= MIN_SURVIVORS else self.results.values())

    def _cost(self, knobs: TunableSettings, outcomes: Mapping[TunableSettings, TrialOutcome]) -> float:
        """Seconds or joules per request, as in `outcomes`; infinite for a failed point.

        When minimizing joules, it is also infinite for a point that takes too long.
        """
        outcome = outcomes.get(knobs)
        if outcome is None:
            return math.inf
        if self._goal == "energy":
            in_use = outcomes[self._base].turn_s(self._prompt) if self._base in outcomes else math.inf
            if not math.isfinite(in_use):
                in_use = min(o.turn_s(self._prompt) for o in outcomes.values())
            if outcome.turn_s(self._prompt) > MAX_SLOWDOWN * in_use:
                return math.inf
        return cost(outcome, self._prompt, self._goal)

    def _counted(self, knobs: TunableSettings) -> float:
        """The cost including the handicap against the settings in use."""
        cost = self._cost(knobs, self.results)
        if knobs == self._base:
            return cost
        lossy = knobs.kv_type != self._base.kv_type and knobs.kv_type not in ("f16", "bf16", "f32")
        mine = self.results[knobs]
        against = self.results.get(self._base, mine)
        return cost / worth(mine, against, self._noise(self._rounds[knobs]), lossy=lossy)

    async def _search(self, budget: TrialSize) -> None:
        """Measure the settings in use, each single change, then combinations of the changes that helped."""
        await self._try(self._base, budget)
        helped: list[Sequence[Level | None]] = []
        for dim in self._dims:
            single = {i: changed(self._base, level) for i, level in enumerate(dim.levels)}
            for knobs in single.values():
                await self._try(knobs, budget)
            costs = {i: self._short_cost(k) for i, k in single.items()}
            best = min(costs.values())
            near = sorted((c, i) for i, c in costs.items() if c <= NEAR * best)
            better = [dim.levels[i] for _, i in near if single[i] != self._base][:2]
            as_good = self._short_cost(self._base) <= NEAR * best
            helped.append([*better, None] if as_good or not better else better)
        await self._combine(helped, budget)
        await self._refine(budget)

    async def _combine(self, helped: Sequence[Sequence[Level | None]], budget: TrialSize) -> None:
        """Combine changes that helped alone; the most promising products of their gains come first."""
        base_cost = self._short_cost(self._base)
        costs: dict[TunableSettings, float] = {}
        for levels in itertools.islice(itertools.product(*helped), 20_000):
            chosen = [level for level in levels if level is not None]
            if len(chosen) < 2:
                continue
            knobs, promise = self._base, 1.0
            for level in chosen:
                knobs = changed(knobs, level)
                alone = self._short_cost(changed(self._base, level))
                promise *= alone / base_cost if math.isfinite(alone) and math.isfinite(base_cost) else 1.0
            if valid(knobs) and knobs not in self._short:
                costs[knobs] = min(promise, costs.get(knobs, math.inf))
        for knobs in sorted(costs, key=lambda k: costs[k])[:MOST_COMBINATIONS]:
            await self._try(knobs, budget)

    async def _refine(self, budget: TrialSize) -> None:
        """Search around the best point: levels that were nearly as good alone may be better in combination."""
        best = min(self._short, key=self._short_cost)
        beside: dict[TunableSettings, float] = {}
        for dim in self._dims:
            alone = [self._short_cost(changed(self._base, level)) for level in dim.levels]
            for level, score in zip(dim.levels, alone, strict=True):
                if score <= NEARLY * min(alone):
                    beside.setdefault(changed(best, level), score / min(alone))
        unknown = [k for k in beside if k not in self._short]
        for knobs in sorted(unknown, key=lambda k: beside[k])[:MOST_REFINED]:
            await self._try(knobs, budget)

    def _survivors(self) -> list[TunableSettings]:
        """The best quarter of the last round (at least three points), and the settings in use."""
        last = max(self._rounds.values(), default=0)
        alive = [k for k in self.ranked() if self._rounds[k] == last]
        survivors = alive[: max(MIN_SURVIVORS, math.ceil(len(alive) / ETA))]
        if self._base not in survivors and math.isfinite(self._cost(self._base, self.results)):
            survivors.append(self._base)
        return survivors

    async def _round(self, number: int, points: Sequence[TunableSettings], budget: TrialSize) -> None:
        for knobs in points:
            outcome = await self._measure(knobs, budget)
            self.results[knobs] = outcome
            self._rounds[knobs] = number

    async def _try(self, knobs: TunableSettings, budget: TrialSize) -> None:
        """Measure in the first round, once."""
        if knobs in self._short or not valid(knobs):
            return
        outcome = await self._measure(knobs, budget)
        self.results[knobs] = self._short[knobs] = outcome
        self._rounds[knobs] = 0

    def _short_cost(self, knobs: TunableSettings) -> float:
        return self._cost(knobs, self._short)

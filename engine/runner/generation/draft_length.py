"""How many tokens to draft: what steps cost, how often drafts are accepted, and what speculation gained so far."""

from dataclasses import dataclass, field
from typing import Final

# A measured width is believed for this many steps; then other programs or a longer context may have changed it.
FRESH_STEPS: Final = 512
# Weight of the newest step in a width's cost.
NEWEST: Final = 0.2
# Prior of the acceptance rate of a draft model's tokens, and its weight in judged tokens.
PRIOR: Final = 0.7
PRIOR_WEIGHT: Final = 2.0
# What was judged long ago counts less: a text changes from copying to inventing. Halved after some fifteen drafts.
DECAY: Final = 0.95
# Processors take rows by four: what is left over costs as much as four more. Source: ggml-cpu/repack.cpp.
ROWS_AT_ONCE: Final = 4
# A draft must promise this much, or the noise of measuring would decide.
WORTH: Final = 1.03
# What speculation may cost a text in which it never helps: one step, and this share of its time. Together below 3 %
# of an answer of a hundred tokens.
BUDGET_STEPS: Final = 1.0
BUDGET_FRAC: Final = 0.015
# What a row of a step takes of a step of one row, where drafts may not depend on measurements. On the careful side:
# 4 rows took 1.5 of one, 8 rows 1.9, 16 rows 2.7 to 3. Measured: docs/log.md, "answers that repeat".
ASSUMED_ROW: Final = 0.2
# Gains that may be risked again, in steps.
LARGEST_GAIN_STEPS: Final = 8.0


@dataclass
class StepCost:
    """What a step of a given width costs, learned as it goes."""

    _seconds: dict[int, float] = field(default_factory=dict)
    _noted: dict[int, int] = field(default_factory=dict)
    _steps: int = 0

    def note(self, rows: int, seconds: float) -> None:
        """A step of `rows` took this long."""
        self._steps += 1
        before = self._seconds.get(rows)
        if before is not None and self._steps - self._noted[rows] > FRESH_STEPS:
            before = None
        self._seconds[rows] = seconds if before is None else (1 - NEWEST) * before + NEWEST * seconds
        self._noted[rows] = self._steps

    def seconds(self, rows: int) -> float | None:
        """What a step of `rows` was measured to take."""
        return self._seconds.get(rows)

    def curve(self, first: int, last: int) -> list[float]:
        """Expected seconds of steps of `first` to `last` rows, where `first` was measured.

        Interpolated between measured widths; beyond them no more than the widest measured one.
        """
        measured = sorted(w for w, at in self._noted.items() if w > first and self._steps - at <= FRESH_STEPS)
        found, at, value = [self._seconds[first]], first, self._seconds[first]
        for width in measured:
            target = self._seconds[width]
            slope = (target - value) / (width - at)
            found += [value + slope * i for i in range(1, width - at + 1)]
            at, value = width, target
            if width >= last:
                break
        found += [value] * (last - at)
        return found[: last - first + 1]


class AssumedCost(StepCost):
    """What steps are taken to cost for requests that repeat: no measurement decides about their drafts."""

    def note(self, rows: int, seconds: float) -> None:
        """Nothing is learned."""

    def seconds(self, rows: int) -> float:
        """In steps of one row."""
        return 1.0 + ASSUMED_ROW * (rows - 1)

    def curve(self, first: int, last: int) -> list[float]:
        """Of `first` to `last` rows."""
        return [self.seconds(rows) for rows in range(first, last + 1)]


@dataclass
class Acceptance:
    """How often a draft token is accepted, given that all before it were; decays to its prior without trials."""

    prior: float = PRIOR
    hits: float = 0.0
    trials: float = 0.0

    @property
    def rate(self) -> float:
        """Between 0 and 1."""
        return (self.hits + self.prior * PRIOR_WEIGHT) / (self.trials + PRIOR_WEIGHT)

    def note(self, proposed: int, accepted: int) -> None:
        """Of a draft of `proposed` tokens the first `accepted` were right."""
        self.hits = DECAY * self.hits + accepted
        self.trials = DECAY * self.trials + accepted + (accepted < proposed)

    def decay(self) -> None:
        """A step without a draft."""
        self.hits *= DECAY
        self.trials *= DECAY


def best_draft_length(cost: StepCost, rows: int, limit: int, acceptance: Acceptance, draft_token_s: float) -> int:
    """The draft length beside `rows` sequences that gives most tokens a second; 0: no draft is worth it.

    `draft_token_s` is what drafting one token costs.
    """
    if cost.seconds(rows) is None:
        return limit
    steps = cost.curve(rows, rows + limit)
    best, best_speed = 0, WORTH * rows / steps[0]
    rate = acceptance.rate
    right, expected = 1.0, float(rows)
    for length in range(1, limit + 1):
        right *= rate
        expected += right
        if (rows + length) % ROWS_AT_ONCE and length < limit:
            continue
        speed = expected / (steps[length] + length * draft_token_s)
        if speed > best_speed:
            best, best_speed = length, speed
    return best


@dataclass
class DraftBalance:
    """What speculation has gained or lost one text, in seconds. It may lose a little, never more."""

    gain_s: float = 0.0
    plain_s: float = 0.0

    @property
    def allows(self) -> bool:
        """Speculation may continue."""
        return self.gain_s >= -BUDGET_FRAC * self.plain_s

    def skipped(self, plain_s: float) -> None:
        """A step without a draft."""
        if not self.plain_s:
            self.gain_s = BUDGET_STEPS * plain_s
        self.plain_s += plain_s

    def rejected(self, spent_s: float) -> None:
        """Time spent on a draft that came to nothing."""
        self.gain_s -= spent_s

    def note(self, plain_s: float, spent_s: float, accepted: int) -> None:
        """A step that would take `plain_s` took `spent_s` with the draft, of which `accepted` were right."""
        self.skipped(plain_s * (1 + accepted))
        self.gain_s = min(self.gain_s + (1 + accepted) * plain_s - spent_s, LARGEST_GAIN_STEPS * plain_s)

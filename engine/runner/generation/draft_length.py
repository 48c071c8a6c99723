"""Chooses the number of draft tokens from step costs, the acceptance rate, and the gain of speculation so far."""

from dataclasses import dataclass, field
from typing import Final

# A measured width is valid for this many steps; other programs or a longer context may change it later.
FRESH_STEPS: Final = 512
# Weight of the newest step in the moving average of a width's cost.
NEWEST: Final = 0.2
# Prior of the acceptance rate of a draft model's tokens, and its weight in checked tokens.
PRIOR: Final = 0.7
PRIOR_WEIGHT: Final = 2.0
# Decay of old trials: a text may change from copying to new content. Half the weight is left after about 15 drafts.
DECAY: Final = 0.95
# CPU kernels process rows in groups of four: an incomplete group costs as much as a full one. Source:
# ggml-cpu/repack.cpp.
ROWS_AT_ONCE: Final = 4
# Minimum expected speed-up of a draft; below it, measurement noise would decide.
WORTH: Final = 1.03
# Maximum cost of speculation in a text where it never helps: one step, and this fraction of its time. Together
# below 3 % of a response of a hundred tokens.
BUDGET_STEPS: Final = 1.0
BUDGET_FRAC: Final = 0.015
# Cost of an additional row, as a fraction of a step with one row, if drafts may not depend on measurements. A
# conservative value: 4 rows took 1.5 times as long as one, 8 rows 1.9, 16 rows 2.7 to 3. Measured: log-archive.md,
# "answers that repeat".
ASSUMED_ROW: Final = 0.2
# Maximum gain that may be risked again, in steps.
LARGEST_GAIN_STEPS: Final = 8.0


@dataclass
class StepCost:
    """Cost of a step per number of rows, learned during generation."""

    _seconds: dict[int, float] = field(default_factory=dict)
    _noted: dict[int, int] = field(default_factory=dict)
    _steps: int = 0

    def note(self, rows: int, seconds: float) -> None:
        """Record that a step of `rows` took this long."""
        self._steps += 1
        before = self._seconds.get(rows)
        if before is not None and self._steps - self._noted[rows] > FRESH_STEPS:
            before = None
        self._seconds[rows] = seconds if before is None else (1 - NEWEST) * before + NEWEST * seconds
        self._noted[rows] = self._steps

    def seconds(self, rows: int) -> float | None:
        """Return the measured time of a step of `rows`, or None."""
        return self._seconds.get(rows)

    def curve(self, first: int, last: int) -> list[float]:
        """Return the expected seconds of steps of `first` to `last` rows; `first` must have been measured.

        Interpolates between measured widths; wider steps count as the widest measured one.
        """
        measured = sorted(w for w, at in self._noted.items() if w > first and self._steps - at <= FRESH_STEPS)
        seconds, at, value = [self._seconds[first]], first, self._seconds[first]
        for width in measured:
            target = self._seconds[width]
            slope = (target - value) / (width - at)
            seconds += [value + slope * i for i in range(1, width - at + 1)]
            at, value = width, target
            if width >= last:
                break
        seconds += [value] * (last - at)
        return seconds[: last - first + 1]


class AssumedCost(StepCost):
    """Assumed cost of steps for reproducible requests: their drafts must not depend on measurements."""

    def note(self, rows: int, seconds: float) -> None:
        """Do nothing: the cost is fixed."""

    def seconds(self, rows: int) -> float:
        """Return the cost in units of a step of one row."""
        return 1.0 + ASSUMED_ROW * (rows - 1)

    def curve(self, first: int, last: int) -> list[float]:
        """Return the costs of `first` to `last` rows."""
        return [self.seconds(rows) for rows in range(first, last + 1)]


@dataclass
class Acceptance:
    """Acceptance rate of a draft token, given that all tokens before it were accepted; decays to its prior."""

    prior: float = PRIOR
    hits: float = 0.0
    trials: float = 0.0

    @property
    def rate(self) -> float:
        """The rate, between 0 and 1."""
        return (self.hits + self.prior * PRIOR_WEIGHT) / (self.trials + PRIOR_WEIGHT)

    def note(self, proposed: int, accepted: int) -> None:
        """Record a draft of `proposed` tokens, of which the first `accepted` were right."""
        self.hits = DECAY * self.hits + accepted
        self.trials = DECAY * self.trials + accepted + (accepted < proposed)

    def decay(self) -> None:
        """Record a step without a draft."""
        self.hits *= DECAY
        self.trials *= DECAY


def best_draft_length(cost: StepCost, rows: int, limit: int, acceptance: Acceptance, draft_token_s: float) -> int:
    """Return the draft length with the most tokens per second in a step with `rows` sequences; 0: do not draft.

    `draft_token_s` is the time to draft one token.
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
    """Time that speculation has gained or lost in one text, in seconds. The loss is limited."""

    gain_s: float = 0.0
    plain_s: float = 0.0

    @property
    def allows(self) -> bool:
        """Whether speculation may continue."""
        return self.gain_s >= -BUDGET_FRAC * self.plain_s

    def skipped(self, plain_s: float) -> None:
        """Record a step without a draft."""
        if not self.plain_s:
            self.gain_s = BUDGET_STEPS * plain_s
        self.plain_s += plain_s

    def rejected(self, spent_s: float) -> None:
        """Record time spent on a draft that was not used."""
        self.gain_s -= spent_s

    def note(self, plain_s: float, spent_s: float, accepted: int) -> None:
        """Record a step that took `spent_s` with a draft instead of `plain_s`, with `accepted` accepted tokens."""
        self.skipped(plain_s * (1 + accepted))
        self.gain_s = min(self.gain_s + (1 + accepted) * plain_s - spent_s, LARGEST_GAIN_STEPS * plain_s)

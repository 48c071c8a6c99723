"""What a search is for: the fastest turn or the one of fewest joules, and which gains are more than noise."""

import math
from collections.abc import Iterable
from typing import Final

from engine.placement.measurements import Goal, Outcome

# A change must gain this to replace what is in use; below it is noise. Lossy ones must gain more.
WORTH: Final = 0.99
LOSSY_WORTH: Final = 0.95
# Fewer joules are no reason for a turn that takes longer than so many times that of the settings in use. Ours: who
# tunes still waits for answers, and what the computer draws at rest for all that time is not counted. A bound of
# this form is Zeus's MaxSlowdownConstraint (zeus.optimizer.power_limit), which leaves the factor to its user.
MAX_SLOWDOWN: Final = 2.0
# Joules differ clearly beyond so many standard errors of the difference: Student's t for the eight and more degrees
# of freedom of a last round, two-sided at 5 %, is at most 2.3; several points are compared at once.
CLEAR: Final = 2.5
# However noisy a meter is, this gain is believed.
_LEAST_WORTH: Final = 0.05


def cost(outcome: Outcome, prompt: int, goal: Goal) -> float:
    """What is minimized: seconds or joules of a turn. Infinite for a bad point."""
    return outcome.turn_j() if goal == "energy" else outcome.turn_s(prompt)


def finite(value: float) -> float | None:
    """As a report tells it: JSON has no infinity, which is what does not work."""
    return value if math.isfinite(value) else None


def noise(outcomes: Iterable[Outcome]) -> float:
    """Standard deviation of one run's joules as a share of them, by the repeats of points measured alike."""
    squares, free = 0.0, 0
    for outcome in outcomes:
        mean = sum(outcome.joules) / max(1, len(outcome.joules))
        if mean > 0 and len(outcome.joules) > 1:
            squares += sum((j / mean - 1) ** 2 for j in outcome.joules)
            free += len(outcome.joules) - 1
    return math.sqrt(squares / free) if free else 0.0


def worth(mine: Outcome, other: Outcome, deviation: float, *, lossy: bool = False) -> float:
    """The share of the other's cost below which mine is a gain, by how often each was measured and how noisily."""
    least = LOSSY_WORTH if lossy else WORTH
    runs, others = len(mine.joules), len(other.joules)
    if not runs or not others:
        return least
    return max(_LEAST_WORTH, min(least, 1 - CLEAR * deviation * math.sqrt(1 / runs + 1 / others)))

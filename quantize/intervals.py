"""How sure a share of passed cases is."""

import math
from collections.abc import Sequence
from typing import Final

Z95: Final = 1.959964  # of the normal distribution: 95 % lie within


def wilson(passed: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share, 0 to 1. Source: Wilson (1927); it holds for few cases and at the ends."""
    if total == 0:
        return 0.0, 1.0
    share, z2 = passed / total, Z95 * Z95
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 / (1 + z2 / total) * math.sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def paired(first: Sequence[bool], second: Sequence[bool]) -> tuple[float, float, float]:
    """The second's share less the first's on the same cases, with its 95 % interval.

    Only cases where the two differ say anything: comparing two models needs far fewer cases than two intervals.
    """
    n = len(first)
    won = sum(b and not a for a, b in zip(first, second, strict=True))
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    if n == 0:
        return 0.0, -1.0, 1.0
    change = (won - lost) / n
    # Agresti and Min (2005): half a case more in each of the four cells keeps the interval honest for few cases.
    won_, lost_, n_ = won + 0.5, lost + 0.5, n + 2.0
    middle = (won_ - lost_) / n_
    half = Z95 * math.sqrt(max((won_ + lost_) / n_ - middle * middle, 0.0) / n_)
    return change, max(-1.0, min(change, middle - half)), min(1.0, max(change, middle + half))


def mcnemar(lost: int, won: int) -> float:
    """How often chance alone splits the cases that differ at least so unevenly, 0 to 1.

    Source: McNemar (1947), exact, with half of the observed split's own weight (mid-p; Fagerland et al. 2013).
    """
    n, fewer = lost + won, min(lost, won)
    if n == 0 or lost == won:
        return 1.0
    tail = sum(math.comb(n, k) for k in range(fewer)) + math.comb(n, fewer) / 2
    return min(1.0, float(2 * tail / 2**n))


def share_text(passed: int, total: int) -> str:
    """A share with its interval, in words."""
    low, high = wilson(passed, total)
    return f"{passed}/{total} = {passed / total if total else 0:.0%} ({low:.0%} to {high:.0%})"

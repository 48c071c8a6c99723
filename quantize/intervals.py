"""Confidence intervals of pass rates, and tests of the difference between two of them."""

import math
from collections.abc import Sequence
from typing import Final

Z95: Final = 1.959964  # of the normal distribution: 95 % of values are within this many deviations


def wilson(passed: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a pass rate, 0 to 1.

    Source: Wilson (1927); valid for few cases and for rates near 0 or 1.
    """
    if total == 0:
        return 0.0, 1.0
    share, z2 = passed / total, Z95 * Z95
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = Z95 / (1 + z2 / total) * math.sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)


def paired(first: Sequence[bool], second: Sequence[bool]) -> tuple[float, float, float]:
    """The second pass rate minus the first on the same cases, with its 95 % interval.

    Only cases with different results count. This needs far fewer cases than comparing two separate intervals.
    """
    n = len(first)
    won = sum(b and not a for a, b in zip(first, second, strict=True))
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    if n == 0:
        return 0.0, -1.0, 1.0
    change = (won - lost) / n
    # Agresti and Min (2005): adding half a case to each of the four cells keeps the interval valid for few cases.
    won_, lost_, n_ = won + 0.5, lost + 0.5, n + 2.0
    middle = (won_ - lost_) / n_
    half = Z95 * math.sqrt(max((won_ + lost_) / n_ - middle * middle, 0.0) / n_)
    return change, max(-1.0, min(change, middle - half)), min(1.0, max(change, middle + half))


def mcnemar(lost: int, won: int) -> float:
    """Probability (0 to 1) that chance alone splits the differing cases at least this unevenly.

    Source: McNemar (1947), exact, counting half of the observed split's probability (mid-p; Fagerland et al. 2013).
    """
    n, fewer = lost + won, min(lost, won)
    if n == 0 or lost == won:
        return 1.0
    tail = sum(math.comb(n, k) for k in range(fewer)) + math.comb(n, fewer) / 2
    return min(1.0, float(2 * tail / 2**n))


def share_text(passed: int, total: int) -> str:
    """Format a pass rate with its interval."""
    low, high = wilson(passed, total)
    return f"{passed}/{total} = {passed / total if total else 0:.0%} ({low:.0%} to {high:.0%})"

"""Where a name goes beside its point, so that it covers nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, hypot

# Directions to try, best first: right above, above, right, left above, left, right below, below. Stock mixes lie
# above our line, which a name to the left below would cross.
_WAYS = ((0.0, -1.0), (-0.5, -1.0), (0.0, -0.5), (-1.0, -1.0), (-1.0, -0.5), (0.0, 0.0), (-0.5, 0.0))
_DISTANCES = (6, 12, 20, 30)
_FAR = 1e4  # pixels, more than any name is away


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels, y downwards."""

    left: float
    top: float
    width: float
    height: float

    def meets(self, other: "Box") -> bool:
        """They share area."""
        return (
            self.left < other.left + other.width
            and other.left < self.left + self.width
            and self.top < other.top + other.height
            and other.top < self.top + self.height
        )


def along(first: tuple[float, float], last: tuple[float, float], step: float) -> list[tuple[float, float]]:
    """Points of the line between two points, at most a step apart, without its ends."""
    far = hypot(last[0] - first[0], last[1] - first[1])
    count = ceil(far / step)
    return [
        (first[0] + (last[0] - first[0]) * n / count, first[1] + (last[1] - first[1]) * n / count)
        for n in range(1, count)
    ]


def around(box: Box) -> tuple[Box, ...]:
    """What is outside of a rectangle, on its four sides."""
    return (
        Box(box.left - _FAR, box.top - _FAR, _FAR, box.height + 2 * _FAR),
        Box(box.left + box.width, box.top - _FAR, _FAR, box.height + 2 * _FAR),
        Box(box.left, box.top - _FAR, box.width, _FAR),
        Box(box.left, box.top + box.height, box.width, _FAR),
    )


def place(x: float, y: float, width: float, height: float, taken: Sequence[Box]) -> Box | None:
    """The nearest free place for a name of this size beside the point; None when all around is taken."""
    for distance in _DISTANCES:
        for across, down in _WAYS:
            left = x + across * width + distance * (0 if across == -0.5 else 1 if across == 0 else -1)  # noqa: PLR2004 - centred
            top = y + down * height + distance * (0 if down == -0.5 else 1 if down == 0 else -1)  # noqa: PLR2004 - centred
            box = Box(left, top, width, height)
            if not any(box.meets(other) for other in taken):
                return box
    return None

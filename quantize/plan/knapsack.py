"""The multiple-choice knapsack, solved exactly: one option of every item, least total cost within a capacity.

A Lagrangian bound fixes most items before the search: an option whose reduced cost exceeds what the best
solution can be away from the bound is in no best solution. The rest is searched as Pareto frontiers of
(bytes, cost), with the allowed distance from the bound widened until a solution appears, which is the best.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

Array = np.ndarray[Any, Any]

# States kept before nearly equal ones are merged; then the result is within the reported gap of the best.
# Measured: 8B shapes with measured damage need under 30,000 (docs/log.md, plan).
_MAX_STATES = 400_000
_FIRST_DISTANCE = 1e-3


class Choice(msgspec.Struct, frozen=True):
    """The chosen option of each item, the totals, and how far at most the cost is above the best possible."""

    options: tuple[int, ...]
    num_bytes: int
    cost: float
    gap: float


class _Item(msgspec.Struct, frozen=True):
    """Options worth looking at, sorted by bytes, costs strictly falling; `index` are the caller's numbers."""

    num_bytes: Array
    cost: Array
    index: Array


def solve(items: Sequence[tuple[Sequence[int], Sequence[float]]], capacity: int) -> Choice | None:
    """Choose one option of each item (bytes, costs: same length) with least total cost in `capacity` bytes.

    None: even the smallest options do not fit. Costs must be finite and not negative.
    """
    reduced = [_undominated(num_bytes, cost) for num_bytes, cost in items]
    if sum(int(i.num_bytes[0]) for i in reduced) > capacity:
        return None
    if sum(int(i.num_bytes[-1]) for i in reduced) <= capacity:
        return _choice(reduced, [len(i.index) - 1 for i in reduced], 0.0)
    price, bound = _dual(reduced, capacity)
    distance = max(abs(bound), 1e-12) * _FIRST_DISTANCE
    while True:
        found = _search(reduced, capacity, price, distance)
        if found is not None:
            picks, merged = found
            result = _choice(reduced, picks, 0.0)
            gap = max(0.0, result.cost - bound) if merged else 0.0
            return Choice(result.options, result.num_bytes, result.cost, gap)
        distance *= 4


def _undominated(num_bytes: Sequence[int], cost: Sequence[float]) -> _Item:
    size, price = np.asarray(num_bytes, np.int64), np.asarray(cost, np.float64)
    order = np.lexsort((price, size))
    best = np.minimum.accumulate(price[order])
    keep = np.concatenate(([True], best[1:] < best[:-1]))
    index = order[keep]
    return _Item(size[index], price[index], index)


def _choice(items: list[_Item], picks: Sequence[int], gap: float) -> Choice:
    return Choice(
        tuple(int(i.index[p]) for i, p in zip(items, picks, strict=True)),
        sum(int(i.num_bytes[p]) for i, p in zip(items, picks, strict=True)),
        float(sum(float(i.cost[p]) for i, p in zip(items, picks, strict=True))),
        gap,
    )


def _hull(item: _Item) -> list[tuple[float, int]]:
    """(cost saved per byte, bytes more) of each step along the lower convex hull, steepest first."""
    points = [0]
    for k in range(1, len(item.index)):
        while len(points) > 1 and _slope(item, points[-2], points[-1]) <= _slope(item, points[-1], k):
            points.pop()
        points.append(k)
    return [(_slope(item, a, b), int(item.num_bytes[b] - item.num_bytes[a])) for a, b in pairwise(points)]


def _slope(item: _Item, a: int, b: int) -> float:
    return float((item.cost[a] - item.cost[b]) / (item.num_bytes[b] - item.num_bytes[a]))


def _dual(items: list[_Item], capacity: int) -> tuple[float, float]:
    """The price of a byte that gives the best lower bound, and that bound.

    Taking hull steps by steepness solves the relaxed problem; the step that no longer fits sets the price.
    """
    steps = sorted((step for item in items for step in _hull(item)), reverse=True)
    left = capacity - sum(int(i.num_bytes[0]) for i in items)
    price = 0.0
    for slope, size in steps:
        price = slope
        if size > left:
            break
        left -= size
    bound = sum(float((i.cost + price * i.num_bytes).min()) for i in items) - price * capacity
    return price, bound


def _search(items: list[_Item], capacity: int, price: float, distance: float) -> tuple[list[int], bool] | None:
    """The best solution whose cost is at most `distance` above the bound, and whether states were merged."""
    options: list[Array] = []
    for item in items:
        reduced = item.cost + price * item.num_bytes
        reduced -= reduced.min()
        options.append(np.flatnonzero(reduced <= distance))
    least = sum(int(item.num_bytes[keep[0]]) for item, keep in zip(items, options, strict=True))
    if least > capacity:
        return None
    order = sorted(range(len(items)), key=lambda i: len(options[i]))
    remaining_least = least
    size, cost, away = np.zeros(1, np.int64), np.zeros(1), np.zeros(1)
    trail: list[tuple[Array, Array]] = []
    merged = False
    for i in order:
        keep, item = options[i], items[i]
        remaining_least -= int(item.num_bytes[keep[0]])
        reduced = item.cost + price * item.num_bytes
        reduced = reduced[keep] - reduced.min()
        new_size = (size[:, None] + item.num_bytes[keep][None, :]).ravel()
        new_cost = (cost[:, None] + item.cost[keep][None, :]).ravel()
        new_away = (away[:, None] + reduced[None, :]).ravel()
        alive = np.flatnonzero((new_away <= distance) & (new_size + remaining_least <= capacity))
        alive = alive[np.lexsort((new_cost[alive], new_size[alive]))]
        best = np.minimum.accumulate(new_cost[alive])
        alive = alive[np.concatenate(([True], new_cost[alive][1:] < best[:-1]))] if alive.size else alive
        if alive.size == 0:
            return None
        if alive.size > _MAX_STATES:
            merged = True
            alive = _thinned(alive, new_size)
        trail.append((alive // len(keep), keep[alive % len(keep)]))
        size, cost, away = new_size[alive], new_cost[alive], new_away[alive]
    # The frontier falls in cost as bytes rise, so the last state is the cheapest; it must beat the distance.
    last = len(size) - 1
    if not away[last] + price * (capacity - size[last]) <= distance * (1 + 1e-9):
        return None
    picks = [0] * len(items)
    at = last
    for i, (parent, pick) in zip(reversed(order), reversed(trail), strict=True):
        picks[i] = int(pick[at])
        at = int(parent[at])
    return picks, merged


def _thinned(alive: Array, size: Array) -> Array:
    """One state of each stretch of bytes: the last, which is the cheapest."""
    sizes = size[alive]
    stretch = (sizes - sizes[0]) * (_MAX_STATES // 2) // max(1, int(sizes[-1] - sizes[0]))
    return alive[np.concatenate((stretch[1:] != stretch[:-1], [True]))]

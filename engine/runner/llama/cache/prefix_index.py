"""Finds the computed prefix that shares most with a text: sorted by tokens, neighbours share most."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Key = tuple[tuple[str, float], ...]


@dataclass(eq=False, slots=True)  # compare by identity
class StoredPrefix:
    """One computed prefix: `tokens` (n,) int32, its state `data` if in memory, `on_disk` if it has a file.

    The first `num_steady` tokens have the same bits as if computed again (`CachedSequence`). The checkpoints of a
    model that cannot be truncated follow the state; `marks` are their (length, bytes).
    """

    key: Key
    tokens: Any
    size: int
    data: Any = None
    on_disk: bool = False
    marks: tuple[tuple[int, int], ...] = ()
    num_steady: int = 0

    def usable(self, shared: int, *, whole_only: bool) -> int:
        """Return to how many of `shared` equal tokens the state can be truncated."""
        if not whole_only or shared == len(self.tokens):
            return shared
        return max((length for length, _ in self.marks if length <= shared), default=0)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state without checkpoints."""
        return self.size - sum(size for _, size in self.marks)

    def mark(self, data: Any, length: int) -> Any:
        """Return the checkpoint of this length from the loaded `data`; None if there is none."""
        start = self.state_bytes
        for marked, size in self.marks:
            if marked == length:
                return data[start : start + size]
            start += size
        return None


class PrefixIndex:
    """Index of prefixes by their tokens, separate for each key (adapters and owner)."""

    def __init__(self) -> None:
        self._whole: dict[Key, _Ordered] = {}
        self._marks: dict[Key, _Ordered] = {}

    def add(self, entry: StoredPrefix) -> None:
        self._whole.setdefault(entry.key, _Ordered()).add(entry, len(entry.tokens))
        for length, _ in entry.marks:
            self._marks.setdefault(entry.key, _Ordered()).add(entry, length)

    def remove(self, entry: StoredPrefix) -> None:
        self._whole.get(entry.key, _NONE).remove(entry, len(entry.tokens))
        for length, _ in entry.marks:
            self._marks.get(entry.key, _NONE).remove(entry, length)

    def best(self, tokens: Any, key: Key, *, whole_only: bool) -> tuple[StoredPrefix | None, int]:
        """Return the entry with the longest usable beginning of `tokens` (n,) int32, and its length; or (None, 0).

        `whole_only`: states cannot be truncated, so only their own length and those of their marks are usable.
        """
        nothing: tuple[StoredPrefix | None, int] = (None, 0)
        if not whole_only:
            return next(self.sharing(tokens, key), nothing)
        whole = next(self._whole.get(key, _NONE).beginnings(tokens), nothing)
        marked = next(self._marks.get(key, _NONE).beginnings(tokens), nothing)
        return max(whole, marked, key=lambda match: match[1])

    def sharing(self, tokens: Any, key: Key) -> Iterator[tuple[StoredPrefix, int]]:
        """Yield entries that start like `tokens` and the number of shared tokens, most first."""
        return self._whole.get(key, _NONE).sharing(tokens)

    def beginnings(self, tokens: Any, key: Key) -> Iterator[StoredPrefix]:
        """Yield entries that are a beginning of `tokens`, or all of them."""
        return (entry for entry, _ in self._whole.get(key, _NONE).beginnings(tokens))


class _Ordered:
    """Beginnings of entries, sorted by tokens. It must not change during iteration."""

    def __init__(self) -> None:
        self._items: list[tuple[StoredPrefix, int]] = []

    def add(self, entry: StoredPrefix, length: int) -> None:
        insort(self._items, (entry, length), key=_order)

    def remove(self, entry: StoredPrefix, length: int) -> None:
        order = _order((entry, length))
        first, end = bisect_left(self._items, order, key=_order), bisect_right(self._items, order, key=_order)
        for i in range(first, end):
            if self._items[i][0] is entry:
                del self._items[i]
                return

    def sharing(self, tokens: Any) -> Iterator[tuple[StoredPrefix, int]]:
        """Yield all that share a token, most first: entries further from the position of `tokens` share fewer."""
        after = bisect_left(self._items, _bytes(tokens), key=_order)
        before = after - 1
        shared_before, right = self._shared(before, tokens), self._shared(after, tokens)
        while shared_before or right:
            if shared_before >= right:
                yield self._items[before][0], shared_before
                before -= 1
                shared_before = self._shared(before, tokens)
            else:
                yield self._items[after][0], right
                after += 1
                right = self._shared(after, tokens)

    def beginnings(self, tokens: Any) -> Iterator[tuple[StoredPrefix, int]]:
        """Yield the beginnings of `tokens`, one per length, longest first."""
        length = len(tokens)
        while length > 0:
            last = bisect_right(self._items, _bytes(tokens[:length]), key=_order) - 1
            shared = self._shared(last, tokens[:length])
            if shared and shared == self._items[last][1]:
                yield self._items[last]
                shared -= 1
            length = shared

    def _shared(self, index: int, tokens: Any) -> int:
        if not 0 <= index < len(self._items):
            return 0
        entry, length = self._items[index]
        return shared_length(entry.tokens[:length], tokens)


_NONE = _Ordered()


def shared_length(a: Any, b: Any) -> int:
    """Number of equal leading tokens of two int32 arrays."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def _order(item: tuple[StoredPrefix, int]) -> bytes:
    entry, length = item
    return _bytes(entry.tokens[:length])


def _bytes(tokens: Any) -> bytes:
    """Return bytes that sort like the tokens: big-endian, so the most significant byte comes first."""
    return bytes(tokens.astype(">u4"))

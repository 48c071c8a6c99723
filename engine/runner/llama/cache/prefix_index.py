"""Which computed prefix shares most with a text: in the order of their tokens, neighbours share most."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Key = tuple[tuple[str, float], ...]


@dataclass(eq=False, slots=True)  # two of them are the same only if they are one
class StoredPrefix:
    """One computed prefix. `tokens` (n,) int32; `data` its state while it is in memory; `on_disk`: it has a file.

    The first `num_steady` tokens have the bits that computing them again would give (`CachedSequence`).
    Behind the state follow the checkpoints of a model that cannot be cut: `marks` are their (length, bytes).
    """

    key: Key
    tokens: Any
    size: int
    data: Any = None
    on_disk: bool = False
    marks: tuple[tuple[int, int], ...] = ()
    num_steady: int = 0

    def usable(self, shared: int, *, whole_only: bool) -> int:
        """How many of `shared` equal tokens the state can be brought to."""
        if not whole_only or shared == len(self.tokens):
            return shared
        return max((length for length, _ in self.marks if length <= shared), default=0)

    @property
    def state_bytes(self) -> int:
        """Bytes of the state itself."""
        return self.size - sum(size for _, size in self.marks)

    def mark(self, data: Any, length: int) -> Any:
        """The checkpoint of that length in the loaded `data`; None if there is none."""
        start = self.state_bytes
        for marked, size in self.marks:
            if marked == length:
                return data[start : start + size]
            start += size
        return None


class PrefixIndex:
    """Prefixes by their tokens, those of each key (adapters and owner) apart."""

    def __init__(self) -> None:
        self._whole: dict[Key, _Ordered] = {}
        self._marks: dict[Key, _Ordered] = {}

    def add(self, entry: StoredPrefix) -> None:
        """Know an entry from now on."""
        self._whole.setdefault(entry.key, _Ordered()).add(entry, len(entry.tokens))
        for length, _ in entry.marks:
            self._marks.setdefault(entry.key, _Ordered()).add(entry, length)

    def remove(self, entry: StoredPrefix) -> None:
        """Forget an entry, if it is known."""
        self._whole.get(entry.key, _NONE).remove(entry, len(entry.tokens))
        for length, _ in entry.marks:
            self._marks.get(entry.key, _NONE).remove(entry, length)

    def best(self, tokens: Any, key: Key, *, whole_only: bool) -> tuple[StoredPrefix | None, int]:
        """What can be brought to the longest beginning of `tokens` (n,) int32, and how long; (None, 0): nothing.

        `whole_only`: states cannot be cut, so each stands for its own length and those of its marks.
        """
        nothing: tuple[StoredPrefix | None, int] = (None, 0)
        if not whole_only:
            return next(self.sharing(tokens, key), nothing)
        whole = next(self._whole.get(key, _NONE).beginnings(tokens), nothing)
        marked = next(self._marks.get(key, _NONE).beginnings(tokens), nothing)
        return max(whole, marked, key=lambda found: found[1])

    def sharing(self, tokens: Any, key: Key) -> Iterator[tuple[StoredPrefix, int]]:
        """Entries that begin like `tokens`, and how many tokens they share, most first."""
        return self._whole.get(key, _NONE).sharing(tokens)

    def beginnings(self, tokens: Any, key: Key) -> Iterator[StoredPrefix]:
        """Entries that are a beginning of `tokens`, or all of them."""
        return (entry for entry, _ in self._whole.get(key, _NONE).beginnings(tokens))


class _Ordered:
    """Beginnings of entries in the order of their tokens. It must not change while an iterator of it is read."""

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
        """All that share a token, most first: the further from the place of `tokens`, the fewer are shared."""
        after = bisect_left(self._items, _bytes(tokens), key=_order)
        before = after - 1
        left, right = self._shared(before, tokens), self._shared(after, tokens)
        while left or right:
            if left >= right:
                yield self._items[before][0], left
                before -= 1
                left = self._shared(before, tokens)
            else:
                yield self._items[after][0], right
                after += 1
                right = self._shared(after, tokens)

    def beginnings(self, tokens: Any) -> Iterator[tuple[StoredPrefix, int]]:
        """The beginnings of `tokens`, one of each length, the longest first."""
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
    """Bytes in whose order the tokens are, one after the other: the most significant byte comes first."""
    return bytes(tokens.astype(">u4"))

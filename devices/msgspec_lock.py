"""Lets only one thread at a time resolve the types that msgspec decodes into."""

import threading
from typing import Any, Final, TypeVar

import msgspec

K = TypeVar("K")

_LOCK: Final = threading.Lock()
_LEARNED: Final[dict[Any, Any]] = {}


def learned(kind: K) -> K:
    """An equal type, after msgspec has resolved its fields and those of the classes in it.

    msgspec 0.22 publishes a class's type information before it is complete: if two threads decode into a class for
    the first time concurrently, the process crashes. The information of a generic such as `Envelope[int]` is stored
    in this object, of which `typing` makes another, equal one after 128 others: all equal types get the first.
    """
    first: K | None = _LEARNED.get(kind)
    if first is None:
        with _LOCK:
            first = _LEARNED.get(kind, kind)
            msgspec.msgpack.Decoder(first)
            _LEARNED[kind] = first
    return first

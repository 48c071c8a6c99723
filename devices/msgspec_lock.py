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
    the first time concurrently, the process crashes. It stores that of `Envelope[int]` in this object, and `typing`
    makes another equal object after 128 others: the first one is returned for all of them.
    """
    found: K | None = _LEARNED.get(kind)
    if found is None:
        with _LOCK:
            found = _LEARNED.get(kind, kind)
            msgspec.msgpack.Decoder(found)
            _LEARNED[kind] = found
    return found

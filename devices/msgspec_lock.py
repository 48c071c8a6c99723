"""Lets only one thread at a time resolve the types that msgspec decodes into."""

import threading
from typing import Any, Final, TypeVar

import msgspec

K = TypeVar("K")

_LOCK: Final = threading.Lock()
_LEARNED: Final[set[Any]] = set()


def learned(kind: K) -> K:
    """The same type, after msgspec has resolved its fields and those of the classes in it.

    msgspec 0.22 publishes a class's type information before it is complete: if two threads decode into a class for
    the first time concurrently, the process crashes.
    """
    if kind not in _LEARNED:
        with _LOCK:
            msgspec.msgpack.Decoder(kind)
            _LEARNED.add(kind)
    return kind

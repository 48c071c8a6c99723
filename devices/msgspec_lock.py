"""Types that msgspec decodes into are learned by one thread at a time."""

import threading
from typing import Any, Final, TypeVar

import msgspec

K = TypeVar("K")

_LOCK: Final = threading.Lock()
_LEARNED: Final[set[Any]] = set()


def learned(kind: K) -> K:
    """The same type, whose fields, and those of the classes in it, msgspec has resolved.

    msgspec 0.22 publishes what it learns of a class before it is complete: two threads that decode into one for the
    first time at once end the process.
    """
    if kind not in _LEARNED:
        with _LOCK:
            msgspec.msgpack.Decoder(kind)
            _LEARNED.add(kind)
    return kind

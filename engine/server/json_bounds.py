"""How much a JSON text would make, counted before it is parsed: a byte of text can become thirty of objects.

What is in strings does not count, so that a long prompt is one value whatever it says.
"""

import re
from collections.abc import Iterator
from typing import Final

from engine.core.errors import InputFault

# Objects take the most: messages, their parts, tools and the nodes of their schemas. Validating and translating so
# many takes some 100 ms, in which nobody else is served. Measured: docs/log.md, abuse.
MAX_OBJECTS: Final = 30_000
# Numbers and short strings: a prompt of a quarter of a million token ids.
MAX_VALUES: Final = 300_000
# Smaller bodies cannot hold as many.
UNCOUNTED_BYTES: Final = 64 << 10
_CHUNK_BYTES: Final = 256 << 10
# The pair of a character beyond the first plane is one escape: its halves mean nothing alone.
_ESCAPE: Final = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u....|.)", re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\.", re.DOTALL)
_LONGEST_ESCAPE: Final = 12


class Counter:
    """Counts piece by piece. `inside`: what comes next is inside a string."""

    def __init__(self) -> None:
        self.inside = False
        self._objects = self._values = 0

    def count(self, chunk: bytes | bytearray) -> bool:
        """Whether a string begins or ends in this piece.

        Raises: InputFault: more values, or objects, than any request needs.
        """
        parts = (_ESCAPED.sub(b"", chunk) if b"\\" in chunk else chunk).split(b'"')
        for part in parts[self.inside :: 2]:
            self._objects += part.count(b"{")
            self._values += part.count(b",") + part.count(b"[") + part.count(b"{")
        self.inside ^= len(parts) % 2 == 0
        if self._objects > MAX_OBJECTS:
            raise InputFault(f"The JSON has more than {MAX_OBJECTS} objects; no request needs so many.")
        if self._values > MAX_VALUES:
            raise InputFault(f"The JSON has more than {MAX_VALUES} values; send long prompts as text.")
        return len(parts) > 1


def check_counts(raw: bytes | bytearray) -> None:
    """Raises: InputFault: more values, or objects, than any request needs. Safe from any thread, yields often."""
    counter = Counter()
    for chunk in chunks(raw, _CHUNK_BYTES):
        counter.count(chunk)


def chunks(raw: bytes | bytearray, num_bytes: int) -> Iterator[bytes]:
    """The text in pieces, none of them cut inside a character or what is escaped."""
    begin = 0
    while begin < len(raw):
        end = _safe(raw, begin, min(begin + num_bytes, len(raw)))
        yield bytes(raw[begin:end])
        begin = end


def _safe(raw: bytes | bytearray, begin: int, end: int) -> int:
    """The next place at or behind `end` where the text may be cut; `begin` is such a place."""
    for index in range(max(begin, end - _LONGEST_ESCAPE), end):
        if raw[index] != ord("\\"):
            continue
        before = raw[begin:index]
        if (len(before) - len(before.rstrip(b"\\"))) % 2:
            continue  # it is itself escaped
        escape = _ESCAPE.match(raw, index)
        if escape is not None and escape.end() > end:
            return escape.end()
    for _ in range(3):  # the longest character has four bytes
        if end < len(raw) and raw[end] & 0xC0 == 0x80:  # noqa: PLR2004 - a byte that goes on
            end += 1
    return end

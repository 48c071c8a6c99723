"""How much a JSON text would make, counted before it is parsed: a byte of text can become thirty of objects.

What stands in strings does not count, so that a long prompt is one value whatever it says.
"""

import re
from collections.abc import Iterator
from typing import Final

from engine.errors import InputFault

# Objects take the most: messages, their parts, tools and the nodes of their schemas. Validating and translating so
# many takes some 100 ms, in which nobody else is served. Measured: docs/log.md, abuse.
MAX_OBJECTS: Final = 30_000
# Numbers and short strings: a prompt of a quarter of a million token ids.
MAX_VALUES: Final = 300_000
# Smaller bodies cannot hold as many.
UNCOUNTED_BYTES: Final = 64 << 10
_PIECE_BYTES: Final = 256 << 10
_ESCAPED: Final = re.compile(rb"\\.", re.DOTALL)


def check_counts(raw: bytes) -> None:
    """Raises: InputFault: more values, or objects, than any request needs. Safe from any thread, yields often."""
    objects = values = 0
    inside = False
    for piece in _pieces(raw):
        parts = piece.split(b'"')
        for part in parts[inside::2]:
            objects += part.count(b"{")
            values += part.count(b",") + part.count(b"[") + part.count(b"{")
        inside ^= len(parts) % 2 == 0
        if objects > MAX_OBJECTS:
            raise InputFault(f"The JSON has more than {MAX_OBJECTS} objects; no request needs so many.")
        if values > MAX_VALUES:
            raise InputFault(f"The JSON has more than {MAX_VALUES} values; send long prompts as text.")


def _pieces(raw: bytes) -> Iterator[bytes]:
    """The text in pieces without what is escaped, none cut between a backslash and what it escapes."""
    begin = 0
    while begin < len(raw):
        end = min(begin + _PIECE_BYTES, len(raw))
        piece = raw[begin:end]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            end += 1
            piece = raw[begin:end]
        yield _ESCAPED.sub(b"", piece) if b"\\" in piece else piece
        begin = end

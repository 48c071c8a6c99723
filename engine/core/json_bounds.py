"""The size of a JSON text in objects, counted before it is parsed: one byte of text can become 30 bytes of objects.

Text inside strings does not count, so a long prompt is one value. Also the whitespace that grammars for JSON allow.
"""

import re
from collections.abc import Iterator
from typing import Final

from engine.core.errors import InputFault

# Weak models write whitespace forever if the grammar allows it. Formatted JSON needs only one blank or one line
# break with indentation.
WHITESPACE: Final = r"(\x20|\r?\n[\x20\t]{0,48})?"
_COUNTED_BYTES: Final = 256 << 10
# Do not split a surrogate pair: it is one character with two escapes.
_ESCAPE: Final = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u....|.)", re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\.", re.DOTALL)
_LONGEST_ESCAPE: Final = 12


class JsonSizeCounter:
    """Counts values chunk by chunk, up to limits. `inside`: the next chunk starts inside a string."""

    def __init__(self, max_objects: int, max_values: int) -> None:
        self._max_objects, self._max_values = max_objects, max_values
        self.inside = False
        self._objects = self._values = 0

    def count(self, chunk: bytes | bytearray) -> bool:
        """Count a chunk; return whether a string starts or ends in it. Raises: InputFault: a limit is exceeded."""
        parts = (_ESCAPED.sub(b"", chunk) if b"\\" in chunk else chunk).split(b'"')
        for part in parts[self.inside :: 2]:
            self._objects += part.count(b"{")
            self._values += part.count(b",") + part.count(b"[") + part.count(b"{")
        self.inside ^= len(parts) % 2 == 0
        if self._objects > self._max_objects:
            raise InputFault(f"The JSON has more than {self._max_objects} objects; no request needs so many.")
        if self._values > self._max_values:
            raise InputFault(f"The JSON has more than {self._max_values} values; send long prompts as text.")
        return len(parts) > 1

    def count_all(self, raw: bytes | bytearray) -> None:
        """Count a whole text, in addition to earlier ones. Raises: InputFault: a limit is exceeded."""
        self.inside = False
        for chunk in chunks(raw, _COUNTED_BYTES):
            self.count(chunk)


def chunks(raw: bytes | bytearray, num_bytes: int) -> Iterator[bytes]:
    """The text in chunks that never split a character or an escape sequence."""
    begin = 0
    while begin < len(raw):
        end = _safe(raw, begin, min(begin + num_bytes, len(raw)))
        yield bytes(raw[begin:end])
        begin = end


def _safe(raw: bytes | bytearray, begin: int, end: int) -> int:
    """The next position at or after `end` where the text may be split; `begin` is such a position."""
    for index in range(max(begin, end - _LONGEST_ESCAPE), end):
        if raw[index] != ord("\\"):
            continue
        before = raw[begin:index]
        if (len(before) - len(before.rstrip(b"\\"))) % 2:
            continue  # this backslash is escaped
        escape = _ESCAPE.match(raw, index)
        if escape is not None and escape.end() > end:
            return escape.end()
    for _ in range(3):  # a character has at most four bytes
        if end < len(raw) and raw[end] & 0xC0 == 0x80:  # noqa: PLR2004 - continuation bytes of UTF-8
            end += 1
    return end

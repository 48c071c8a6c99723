"""The vocabulary of a SentencePiece model file, read without the sentencepiece library.

Source of the field numbers: sentencepiece_model.proto (ModelProto.pieces = 1; piece = 1, score = 2, type = 3).
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

from quantize.errors import BadFile
from quantize.files.byte_source import FileSource

_MAX_BYTES = 64 * 1024 * 1024
_MAX_PIECES = 1_000_000
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class TokenType(IntEnum):
    """Kinds of tokens; SentencePiece's numbers are GGUF's."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


Piece = tuple[bytes, float, TokenType]


def read_pieces(path: Path) -> list[Piece]:
    """Text, score and kind of every piece. Raises: BadFile: it is no SentencePiece model. Unreadable."""
    with FileSource(path) as source:
        if source.size > _MAX_BYTES:
            raise BadFile(str(path), f"{source.size} bytes; at most {_MAX_BYTES} are read")
        raw = source.read_at(0, source.size)
    pieces: list[Piece] = []
    try:
        for number, kind, value in _fields(raw):
            if number == 1 and kind == _BYTES:
                pieces.append(_piece(value))
            if len(pieces) > _MAX_PIECES:
                raise BadFile(str(path), f"more than {_MAX_PIECES} pieces")
    except (ValueError, IndexError, struct.error) as error:
        raise BadFile(str(path), "not a SentencePiece model") from error
    if not pieces:
        raise BadFile(str(path), "not a SentencePiece model")
    return pieces


def _piece(raw: bytes) -> Piece:
    text, score, kind = b"", 0.0, TokenType.NORMAL
    for number, wire, value in _fields(raw):
        if number == 1 and wire == _BYTES:
            text = value
        elif number == 2 and wire == _FIXED32:  # noqa: PLR2004 - field numbers of the format
            (score,) = struct.unpack("<f", value)
        elif number == 3 and wire == _VARINT:  # noqa: PLR2004
            kind = TokenType(int.from_bytes(value, "little"))
    text.decode()
    return text, score, kind


def _fields(raw: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(field number, wire type, value) of a message; numbers come as little-endian bytes."""
    at, end = 0, len(raw)
    while at < end:
        tag, at = _varint(raw, at)
        wire = tag & 7
        if wire == _VARINT:
            number, at = _varint(raw, at)
            value = number.to_bytes(8, "little")
        elif wire == _BYTES:
            size, at = _varint(raw, at)
            value, at = raw[at : at + size], at + size
        elif wire in {_FIXED32, _FIXED64}:
            size = 4 if wire == _FIXED32 else 8
            value, at = raw[at : at + size], at + size
        else:
            raise ValueError(f"wire type {wire}")
        if at > end:
            raise ValueError("a field beyond the end")
        yield tag >> 3, wire, value


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = raw[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return result & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:  # noqa: PLR2004 - 64-bit numbers
            raise ValueError("a number of more than 64 bits")

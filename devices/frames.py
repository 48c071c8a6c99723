"""Frames of bytes between a process and its child: four bytes of big-endian length, then the body."""

import os
import struct
import sys
from typing import BinaryIO, Final

LENGTH: Final = struct.Struct(">I")
MAX_FRAME_BYTES: Final = 300 << 20


def write_frame(sink: BinaryIO, body: bytes) -> None:
    """Write one frame and flush it."""
    sink.write(LENGTH.pack(len(body)) + body)
    sink.flush()


def read_frame(source: BinaryIO, limit_bytes: int = MAX_FRAME_BYTES) -> bytes | None:
    """One frame's body; None at the end of the stream or for an invalid length."""
    header = source.read(LENGTH.size)
    if len(header) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(header)
    if length > limit_bytes:
        return None
    body = source.read(length)
    return body if len(body) == length else None


def claim_stdio() -> tuple[BinaryIO, BinaryIO]:
    """Reserve a child's stdin and stdout for frames: output of libraries goes to stderr."""
    if sys.platform == "win32":
        import msvcrt

        for fd in (0, 1):
            msvcrt.setmode(fd, os.O_BINARY)
    source = os.fdopen(os.dup(0), "rb", buffering=1 << 16)
    sink = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return source, sink

"""Frames between the server and its bounded children: four bytes of big-endian length, then the body."""

import faulthandler
import os
import struct
import sys
from collections.abc import Callable
from typing import BinaryIO, Final

MAX_FRAME_BYTES: Final = 300 << 20
READY: Final = b"ready"
# An answer that computes little, because others hold the processor, may take this many times its limit.
PATIENCE: Final = 5
_LENGTH: Final = struct.Struct(">I")


def write_frame(sink: BinaryIO, body: bytes) -> None:
    """One frame, flushed."""
    sink.write(_LENGTH.pack(len(body)) + body)
    sink.flush()


def read_frame(source: BinaryIO) -> bytes | None:
    """One frame's body; None at the end of the stream or for a length that cannot be right."""
    header = source.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        return None
    body = source.read(length)
    return body if len(body) == length else None


def serve(answer: Callable[[bytes], bytes]) -> None:
    """The whole life of a child: say ready, answer frames until the parent closes the pipe.

    argv[1] is the memory limit in bytes, argv[2] the time limit of one answer in seconds. The watchdog
    is a C thread that ends the process even inside one long native operation; it fires later than the
    parent's own limit and matters only when the parent is gone.
    """
    _limit_memory(int(sys.argv[1]))
    seconds = float(sys.argv[2])
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - exists on Windows only

        for fd in (0, 1):
            msvcrt.setmode(fd, os.O_BINARY)
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    write_frame(sink, READY)
    while (body := read_frame(source)) is not None:
        faulthandler.dump_traceback_later(seconds * (PATIENCE + 1), exit=True)
        reply = answer(body)
        faulthandler.cancel_dump_traceback_later()
        write_frame(sink, reply)


def _limit_memory(limit_bytes: int) -> None:
    """Bound the address space where the system can; elsewhere the parent watches the size."""
    if sys.platform == "linux":
        import resource  # noqa: PLC0415 - exists on POSIX only

        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

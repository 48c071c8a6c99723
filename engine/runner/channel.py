"""The runner's end of the pipes: whole frames in, whole frames out, and a stdout that nobody else can write to."""

import os
import sys
import threading
from typing import BinaryIO

from engine.runner import protocol


class Channel:
    """Blocking frames over two file descriptors. `send` may be called from several threads."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._lock = threading.Lock()

    def receive(self) -> protocol.ToRunner | None:
        """The next message, or None when the server is gone."""
        header = self._source.read(4)
        if len(header) < 4:  # noqa: PLR2004 - the length prefix
            return None
        length = protocol.frame_length(header)
        body = self._source.read(length)
        return protocol.decode_to_runner(body) if len(body) == length else None

    def send(self, message: protocol.FromRunner) -> None:
        """Write one message. A vanished server ends the process: there is nobody left to serve."""
        data = protocol.frame(message)
        try:
            with self._lock:
                self._sink.write(data)
                self._sink.flush()
        except (BrokenPipeError, ValueError):
            os._exit(0)


def claim_stdio() -> Channel:
    """Take stdin and stdout for frames and point file descriptor 1 at stderr, because libraries print."""
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415 - exists on Windows only

        for fd in (0, 1):
            msvcrt.setmode(fd, os.O_BINARY)
    source = os.fdopen(os.dup(0), "rb", buffering=1 << 16)
    sink = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return Channel(source, sink)

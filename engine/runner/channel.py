"""The runner's end of the pipes: whole frames in, whole frames out, and a stdout that nobody else can write to."""

import os
import threading
from typing import BinaryIO

from devices import frames
from engine.runner import protocol


class Channel:
    """Blocking frames over two file descriptors. `send` may be called from several threads."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._lock = threading.Lock()

    def receive(self) -> protocol.ToRunner | None:
        """The next message, or None when the server is gone."""
        body = frames.read_frame(self._source, protocol.MAX_FRAME_BYTES)
        return None if body is None else protocol.decode_to_runner(body)

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
    """The channel of a runner, over its stdin and stdout."""
    return Channel(*frames.claim_stdio())

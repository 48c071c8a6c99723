"""The runner's end of the pipes: sends and receives whole frames, and reserves stdout for them."""

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
        """Return the next message, or None if the server is gone."""
        body = frames.read_frame(self._source, protocol.MAX_FRAME_BYTES)
        return None if body is None else protocol.decode_to_runner(body)

    def send(self, message: protocol.FromRunner) -> None:
        """Write one message. If the server is gone, the process exits: it has no other client."""
        data = protocol.frame(message)
        try:
            with self._lock:
                self._sink.write(data)
                self._sink.flush()
        except (BrokenPipeError, ValueError):
            os._exit(0)


def claim_stdio() -> Channel:
    """Return the channel of a runner, over its stdin and stdout."""
    return Channel(*frames.claim_stdio())

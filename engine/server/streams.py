"""Streams that outlive their connection, as llama-server has them: `X-Conversation-Id` names one to read again."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from starlette.types import Scope

from devices.errors import TesseraError
from engine.core.errors import InputFault
from engine.server.auth import presented_keys

log = logging.getLogger(__name__)

# What is kept of one stream, how many streams are kept, all of them together, and for how long behind their end.
# Source: llama-server's server-stream.cpp (4 MiB, 300 s); it has no bound on their number.
MAX_BYTES: Final = 4 << 20
MAX_STREAMS: Final = 64
MAX_ALL_BYTES: Final = 64 << 20
RETENTION_S: Final = 300.0
# A silent stream says this often that it lives, as `sse.py` does; here it counts as part of the stream.
PING_S: Final = 10.0
HEADER: Final = b"x-conversation-id"


class NoStream(InputFault):
    """No stream of that conversation is kept."""

    code = "stream_not_found"


class StreamStopped(InputFault):
    """The stream was stopped, or another one of the same conversation took its place."""

    code = "cancelled"

    def __init__(self) -> None:
        super().__init__("This answer was cancelled: it was stopped, or asked for again in the same conversation.")


class Making(NamedTuple):
    """How a stream is made: its chunks, its own form of an error, and of a sign of life."""

    chunks: AsyncGenerator[bytes, None]
    error_event: Callable[[Exception], bytes]
    ping: Callable[[], bytes]


class ResumableStream:
    """The bytes of one stream, made whether somebody reads them or not."""

    def __init__(self, making: Making) -> None:
        self.started_at = int(time.time())
        self.completed_at = 0
        self.ended_s = 0.0
        self.buffer = bytearray()
        self.lost = 0
        self._making = making
        self._refused: Exception | None = None
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._make())

    @property
    def done(self) -> bool:
        """Nothing more will come."""
        return self.completed_at != 0

    @property
    def total(self) -> int:
        """Bytes that ever were in it."""
        return self.lost + len(self.buffer)

    def check(self, start: int) -> None:
        """Raises: InputFault: what stands at `start` is not kept any more."""
        if start < self.lost:
            raise InputFault(f"from: the first {self.lost} bytes of this stream are gone; ask again.", "from")

    async def read(self, start: int, *, first: bool = False) -> AsyncGenerator[bytes, None]:
        """Its bytes from `start` on, those that have been and those to come.

        Raises: InputFault: they are not kept any more. For the `first` reader: what ended it before its first byte.
        """
        while True:
            if first and start == 0 and self._refused is not None:
                raise self._refused
            self.check(start)
            news = self._news
            if start < self.total:
                chunk = bytes(self.buffer[start - self.lost :])
                start += len(chunk)
                yield chunk
            elif self.done:
                return
            else:
                await news.wait()

    async def stop(self) -> None:
        """End it now."""
        if self.done:
            return
        self._refuse(StreamStopped())
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end()  # a task that never ran has not said so

    async def _make(self) -> None:
        try:
            async with aclosing(self._making.chunks) as chunks:
                await self._copy(chunks)
        except Exception as error:
            if not isinstance(error, TesseraError):
                log.exception("stream failed")
            self._refuse(error)
            self._add(self._making.error_event(error))
        finally:
            self._end()

    async def _copy(self, chunks: AsyncGenerator[bytes, None]) -> None:
        while True:
            waiting = asyncio.ensure_future(anext(chunks, None))
            try:
                while not (await asyncio.wait((waiting,), timeout=PING_S))[0]:
                    self._add(self._making.ping())
            except asyncio.CancelledError:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                raise
            chunk = waiting.result()
            if chunk is None:
                return
            self._add(chunk)

    def _refuse(self, error: Exception) -> None:
        if self.total == 0:
            self._refused = error

    def _add(self, chunk: bytes) -> None:
        self.buffer += chunk
        if (over := len(self.buffer) - MAX_BYTES) > 0:
            del self.buffer[:over]
            self.lost += over
        self._wake()

    def _end(self) -> None:
        if not self.done:
            self.completed_at, self.ended_s = int(time.time()), time.monotonic()
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class StreamRegistry:
    """At most one stream of a conversation. A conversation's name belongs to the key that it was sent with."""

    def __init__(self) -> None:
        self._streams: OrderedDict[tuple[str, str], ResumableStream] = OrderedDict()

    async def made(self, key: str, name: str, making: Making) -> AsyncGenerator[bytes, None]:
        """Make a stream and keep it, and read it; the one before it in the same conversation ends.

        Raises: InputFault: too many are being made. What ended it before its first byte.
        """
        await self.stop(key, name)
        self._forget()
        if sum(not stream.done for stream in self._streams.values()) >= MAX_STREAMS:
            await making.chunks.aclose()
            raise InputFault(f"{MAX_STREAMS} streams are being kept for their conversations; wait for one.")
        stream = self._streams[key, name] = ResumableStream(making)
        async with aclosing(stream.read(0, first=True)) as chunks:
            async for chunk in chunks:
                yield chunk

    def find(self, key: str, name: str) -> ResumableStream:
        """The stream of a conversation. Raises: NoStream."""
        self._forget()
        stream = self._streams.get((key, name))
        if stream is None:
            raise NoStream(f"No stream of the conversation {name!r} is kept here.", "conv_id")
        return stream

    def look(self, key: str, name: str) -> list[dict[str, Any]]:
        """How far the streams of a conversation are, also those named `name::model`."""
        self._forget()
        return [
            {
                "conversation_id": own,
                "is_done": stream.done,
                "total_bytes": stream.total,
                "started_at": stream.started_at,
                "completed_at": stream.completed_at,
            }
            for (owner, own), stream in self._streams.items()
            if owner == key and (own == name or own.startswith(f"{name}::"))
        ]

    async def stop(self, key: str, name: str) -> None:
        """End a conversation's stream and forget it; nothing to do where there is none."""
        stream = self._streams.pop((key, name), None)
        if stream is not None:
            await stream.stop()

    async def close(self) -> None:
        """End every stream."""
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            await stream.stop()

    def _forget(self) -> None:
        """Drop what ended long ago, and what is over the bounds, the oldest first."""
        now = time.monotonic()
        size = sum(len(stream.buffer) for stream in self._streams.values())
        for name, stream in list(self._streams.items()):
            over = len(self._streams) >= MAX_STREAMS or size > MAX_ALL_BYTES
            if stream.done and (over or now - stream.ended_s > RETENTION_S):
                size -= len(stream.buffer)
                del self._streams[name]


def owner_of(scope: Scope) -> str:
    """Whose conversations a request means: those of its key."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    return " ".join(presented_keys(headers))


def conversation_of(scope: Scope) -> str:
    """The conversation that a request for a stream names in its header; empty where it names none."""
    found = (value for name, value in scope["headers"] if name.lower() == HEADER)
    return next(found, b"").decode("utf-8", "replace").strip() if scope["method"] == "POST" else ""

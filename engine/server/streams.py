"""Streams that outlive their connection, as in llama-server; `X-Conversation-Id` identifies them."""

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
from engine.core.ownership import first_to_go

log = logging.getLogger(__name__)

# Limits for stored streams: bytes per stream, number, total bytes, and the time after their end. Source:
# llama-server's server-stream.cpp (4 MiB, 300 s); it has no limit on their number.
MAX_BYTES: Final = 4 << 20
MAX_STREAMS: Final = 64
MAX_STREAMS_OF_A_KEY: Final = 32
MAX_ALL_BYTES: Final = 64 << 20
RETENTION_S: Final = 300.0
# Interval of keep-alive events, as in `sse.py`; here they are part of the stream.
PING_S: Final = 10.0
HEADER: Final = b"x-conversation-id"


class NoStream(InputFault):
    """No stream of that conversation is stored."""

    code = "stream_not_found"


class StreamStopped(InputFault):
    """The stream was stopped or replaced by another one of the same conversation."""

    code = "cancelled"

    def __init__(self) -> None:
        super().__init__("This answer was cancelled: it was stopped, or asked for again in the same conversation.")


class Making(NamedTuple):
    """Producer of a stream: its chunks, its error event and its keep-alive event."""

    chunks: AsyncGenerator[bytes, None]
    error_event: Callable[[Exception], bytes]
    ping: Callable[[], bytes]


class ResumableStream:
    """The bytes of one stream, produced whether or not a client reads them."""

    def __init__(self, owner: str, making: Making) -> None:
        self.owner = owner
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
        return self.completed_at != 0

    @property
    def size_bytes(self) -> int:
        """Bytes that are stored."""
        return len(self.buffer)

    @property
    def total(self) -> int:
        """Total bytes so far, including dropped ones."""
        return self.lost + len(self.buffer)

    def check(self, start: int) -> None:
        """Raises: InputFault: the bytes at `start` were dropped."""
        if start < self.lost:
            raise InputFault(f"from: the first {self.lost} bytes of this stream are gone; ask again.", "from")

    async def read(self, start: int, *, first: bool = False) -> AsyncGenerator[bytes, None]:
        """The stream's bytes from `start`, existing and future ones.

        Raises: InputFault: they were dropped. The `first` reader also gets an error that came before the first
        byte.
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
        if self.done:
            return
        self._refuse(StreamStopped())
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._end()  # a task that never ran has not done this

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
    """Stores at most one stream per conversation. Conversation names are separate for each API key."""

    def __init__(self) -> None:
        self._streams: OrderedDict[tuple[str, str], ResumableStream] = OrderedDict()

    async def made(self, key: str, name: str, making: Making) -> AsyncGenerator[bytes, None]:
        """Start and store a stream, and read it; stops the previous one of the same conversation.

        Raises: InputFault: too many streams are running. Also an error that came before the first byte.
        """
        await self.stop(key, name)
        self._forget()
        running = [owner for (owner, _), stream in self._streams.items() if not stream.done]
        if len(running) >= MAX_STREAMS or (key and running.count(key) >= MAX_STREAMS_OF_A_KEY):
            await making.chunks.aclose()
            raise InputFault(
                f"{running.count(key)} streams of yours are kept for their conversations, {len(running)} in all; "
                f"the limits are {MAX_STREAMS_OF_A_KEY if key else MAX_STREAMS} and {MAX_STREAMS}. Wait for one."
            )
        stream = self._streams[key, name] = ResumableStream(key, making)
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
        """State of the streams of a conversation, including those named `name::model`."""
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
        """Stop and delete a conversation's stream, if there is one."""
        stream = self._streams.pop((key, name), None)
        if stream is not None:
            await stream.stop()

    async def close(self) -> None:
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            await stream.stop()

    def _forget(self) -> None:
        """Delete expired streams, and finished ones beyond the limits, first those of the owner with most."""
        now = time.monotonic()
        for name, stream in list(self._streams.items()):
            if stream.done and now - stream.ended_s > RETENTION_S:
                del self._streams[name]
        finished = {name: stream for name, stream in self._streams.items() if stream.done}
        size = sum(stream.size_bytes for stream in self._streams.values())
        while finished and (len(self._streams) >= MAX_STREAMS or size > MAX_ALL_BYTES):
            name = first_to_go(finished, MAX_ALL_BYTES // MAX_STREAMS)
            size -= finished.pop(name).size_bytes
            del self._streams[name]


def conversation_of(scope: Scope) -> str:
    """The conversation in the header of a POST request, or ""."""
    values = (value for name, value in scope["headers"] if name.lower() == HEADER)
    return next(values, b"").decode("utf-8", "replace").strip() if scope["method"] == "POST" else ""

"""Server-sent events as raw bytes: early headers, keep-alive comments, cancellation on disconnect."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from devices.errors import TesseraError
from engine.core.errors import Cancelled, exhausted
from engine.core.ownership import request_owner
from engine.pool.loaded_model import QueueTicket
from engine.server.errors import ErrorShape, lookup, retry_header
from engine.server.streams import Making, conversation_of

T = TypeVar("T")


async def merge(generations: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """Events in order of arrival, with the index of their generation. Closing it early cancels all."""
    if len(generations) == 1:
        async for event in generations[0]:
            yield 0, event
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()

    async def drain(index: int, generation: AsyncIterator[T]) -> None:
        try:
            async for event in generation:
                queue.put_nowait((index, event))
            queue.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - carried to the consumer, which raises it
            queue.put_nowait(error)

    tasks = [asyncio.create_task(drain(i, g)) for i, g in enumerate(generations)]
    open_count = len(tasks)
    try:
        while open_count:
            item = await queue.get()
            if item is None:
                open_count -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


log = logging.getLogger(__name__)

# ASGI extension: sends parts of a body that has started. All middleware only looks at its start, and passing each
# token through six functions takes a tenth of its CPU time.
BODY_SENDER: Final = "tessera.body"
# A request that fails before this time gets an HTTP status. A slower one (loading, a long queue) gets its headers
# now, so that client timeouts count from here; its error is sent as an event.
EARLY_HEADERS_S: Final = 5.0
# Well below the idle timeouts of known clients (300 s and more) and proxies (60 s).
PING_S: Final = 10.0


class EventStream(Response):
    """A response that streams the byte chunks of a generator.

    `shape` formats exceptions: as an event after the headers, as a body before them.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        shape: ErrorShape,
        ping: bytes | Callable[[], bytes] = b": ping\n\n",
        media_type: bytes = b"text/event-stream; charset=utf-8",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._chunks = chunks
        self._shape = shape
        self._sign: Callable[[], bytes] = (lambda: ping) if isinstance(ping, bytes) else ping
        self._stream_headers = [
            (b"content-type", media_type),
            (b"cache-control", b"no-cache"),
            *((k.encode(), v.encode()) for k, v in (headers or {}).items()),
        ]
        self._media_type = media_type
        self._has_started = False
        self._last_sent = 0.0
        self._path = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._path = scope["path"]
        if self._media_type.startswith(b"text/event-stream") and (name := conversation_of(scope)):
            making = Making(self._chunks, self._shape.event, self._sign)
            self._chunks = scope["app"].state.server.streams.made(request_owner.get(), name, making)
            self._sign = bytes  # a ping for this reader only would shift the byte offsets that clients count
        pump = asyncio.create_task(self._pump(send, scope.get("extensions", {}).get(BODY_SENDER, send)))
        heart = asyncio.create_task(self._beat(send))
        disconnected = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((pump, disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, heart, disconnected):
                task.cancel()
            await asyncio.gather(pump, heart, disconnected, return_exceptions=True)
            await self._chunks.aclose()

    async def _begin(self, send: Send) -> None:
        if not self._has_started:
            self._has_started = True
            self._last_sent = time.monotonic()
            await send({"type": "http.response.start", "status": 200, "headers": self._stream_headers})

    async def _pump(self, send: Send, send_body: Send) -> None:
        try:
            async for chunk in self._chunks:
                if not self._has_started:
                    await self._begin(send)
                self._last_sent = time.monotonic()
                await send_body({"type": "http.response.body", "body": chunk, "more_body": True})
        except Exception as error:
            lack = exhausted(error)
            if lack is not None:
                log.warning("stream failed, missing: %s: %s", lack.what, error)
            elif not isinstance(error, TesseraError):
                log.exception("stream failed")
            await self._fail(lack or error, send)
            return
        await self._begin(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, error: Exception, send: Send) -> None:
        if self._has_started:
            await send({"type": "http.response.body", "body": self._shape.event(error), "more_body": False})
            return
        self._has_started = True
        headers = [(b"content-type", b"application/json")]
        headers += [(k.encode(), v.encode()) for k, v in retry_header(error).items()]
        await send({"type": "http.response.start", "status": lookup(error)[0], "headers": headers})
        body = json.dumps(self._shape.body(error, self._path)).encode()
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _beat(self, send: Send) -> None:
        await asyncio.sleep(EARLY_HEADERS_S)
        waits = not self._has_started
        await self._begin(send)
        while True:
            due = waits or time.monotonic() - self._last_sent >= PING_S
            if due and (ping := self._sign()):
                await send({"type": "http.response.body", "body": ping, "more_body": True})
            waits = False
            await asyncio.sleep(PING_S)


def comment_of(ticket: QueueTicket) -> Callable[[], bytes]:
    """A keep-alive comment with the load progress and the number of earlier requests."""
    return lambda: b": " + (ticket.words() or "ping").encode() + b"\n\n"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Await `work`; cancel it when the client disconnects.

    Raises: Cancelled: the client disconnected.
    """
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait((task, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Cancelled("the client closed the connection")
        return task.result()
    finally:
        for future in (task, disconnected):
            if not future.done():
                future.cancel()
        await asyncio.gather(task, disconnected, return_exceptions=True)

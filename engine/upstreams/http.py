"""A lean HTTP/1.1 client for streamed responses: reused connections, llhttp's parser, chunks passed on at once.

A general client costs about as much per chunk as the server's own work on it, and a gateway pays that for every
token.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

from engine.message_catalog.reasons import Reason, because
from engine.upstreams.errors import UpstreamBrokeOff, UpstreamUnreachable

CONNECT_S: Final = 5.0
# Maximum bytes buffered before the caller reads them; beyond it the upstream waits.
AHEAD_BYTES: Final = 1 << 20
# Maximum idle connections, and how long they stay open: older ones may be closed without notice.
MAX_IDLE: Final = 32
IDLE_S: Final = 15.0
# A request without any acknowledgement for this long is lost (Linux).
UNSEEN_MS: Final = 10_000
# Maximum body that is read whole: lists of models and errors are far smaller, embeddings fit.
MOST_BYTES: Final = 256 << 20
# Maximum responses with a status of 1xx before the final one; servers send one or two.
MAX_INTERIM: Final = 20
_FINAL, _SWITCHING = 200, 101


class Connection(asyncio.Protocol):
    """One connection. `status`, `headers` and the body belong to the last request."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.lost = False
        self.idle_since = 0.0
        self.error: Exception | None = None
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = self._stays = False
        self._interim = 0
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass of Transport

    def data_received(self, data: bytes) -> None:
        if self.complete:  # unrequested data: the next request must not read it as its response
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.error = error
            self.close()
        if self._buffered > AHEAD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.error = self.error or exc
        # A body without a length ends with its connection.
        lengthless = "content-length" not in self.headers and "chunked" not in self.headers.get(
            "transfer-encoding", ""
        )
        if self.status and lengthless and exc is None:
            self.complete = True
        self._wake()

    # ---- httptools

    def on_message_begin(self) -> None:
        if self.complete:
            self._stays = False  # more than was requested

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.complete:
            return
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.status or self.complete:
            return
        if status < _FINAL and status != _SWITCHING:  # such as 103, which is followed by the response
            self._interim += 1
            self.headers.clear()
            if self._interim > MAX_INTERIM and self.error is None:
                self.error = ConnectionError(because("no_final_response", count=self._interim))
                self.close()
            return
        self.status = status

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self._chunks.append(body)
            self._buffered += len(body)

    def on_message_complete(self) -> None:
        if self.status and not self.complete:
            self.complete = True
            self._stays = self._parser.should_keep_alive()  # after the message llhttp no longer knows its framing

    # ---- for the caller

    @property
    def reusable(self) -> bool:
        """Whether the last response was read completely and the other side keeps the connection open."""
        return self.complete and self._stays and not self.lost

    def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._reset()
        self._transport.write(data)

    def close(self) -> None:
        """Abort the connection, so that the other side stops working on the request."""
        if self._transport is not None:
            self._transport.abort()

    async def begun(self) -> bool:
        """Wait for the status; False if the connection was lost before it."""
        while not self.status:
            if self.lost:
                return False
            await self._next()
        return True

    async def next_chunk(self) -> bytes:
        """All that was received of the body since the last call; empty at its end.

        Raises: ConnectionError: it was cut off.
        """
        while not self._chunks:
            if self.complete:
                return b""
            if self.lost:
                raise ConnectionError(self.error or because("closed_in_the_middle"))
            await self._next()
        chunk = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks, self._buffered = [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return chunk

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _next(self) -> None:
        """Wait until something happens. A future, because an Event takes twice as long."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter


class HttpResponse:
    """A response whose status is known."""

    def __init__(self, name: str, connection: Connection) -> None:
        self._name = name
        self._connection = connection
        self.status = connection.status
        self.headers = connection.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives. Raises: UpstreamBrokeOff."""
        try:
            while chunk := await self._connection.next_chunk():
                yield chunk
        except ConnectionError as error:
            raise UpstreamBrokeOff(
                self._name, because("upstream_broke_off", upstream=self._name, why=_error_text(error))
            ) from error

    async def read(self) -> bytes:
        """The whole body. Raises: UpstreamBrokeOff: it was cut off, or exceeds MOST_BYTES."""
        parts: list[bytes] = []
        async for chunk in self.chunks():
            parts.append(chunk)
            if sum(map(len, parts)) > MOST_BYTES:
                raise UpstreamBrokeOff(
                    self._name, because("upstream_too_much", upstream=self._name, mib=MOST_BYTES >> 20)
                )
        return b"".join(parts)


class HttpClient:
    """Requests to one upstream; use from one event loop. Does not follow redirects: a key goes nowhere else."""

    def __init__(self, name: str, url: str) -> None:
        self._name, self._url = name, url
        parts = urlsplit(url)
        self._host, self._path = parts.hostname or "", parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._netloc = parts.netloc.rpartition("@")[2]
        self._idle: list[Connection] = []

    @asynccontextmanager
    async def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[HttpResponse, None]:
        """Send a request; leaving the context before the response ends aborts the connection.

        Raises: UpstreamUnreachable, UpstreamBrokeOff.
        """
        lines = {"host": self._netloc, "content-length": str(len(body)), "accept": "*/*", **(headers or {})}
        if body:
            lines["content-type"] = "application/json"
        head = f"{method} {self._path}{path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
        data = head.encode("latin-1", "replace") + b"\r\n" + body
        connection = await self._sent(data)
        try:
            yield HttpResponse(self._name, connection)
        finally:
            if connection.reusable and len(self._idle) < MAX_IDLE:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.close()

    async def _sent(self, data: bytes) -> Connection:
        """The connection that replies. If a reused one was closed meanwhile, a new one is tried once."""
        while self._idle:
            connection = self._idle.pop()
            if connection.lost or time.monotonic() - connection.idle_since > IDLE_S:
                connection.close()
                continue
            connection.send(data)
            if await self._has_begun(connection):
                return connection
        connection = await self._connect()
        connection.send(data)
        if not await self._has_begun(connection):
            why = str(connection.error) if connection.error else because("closed_without_answer")
            raise UpstreamBrokeOff(self._name, because("upstream_silent", upstream=self._name, why=why))
        return connection

    @staticmethod
    async def _has_begun(connection: Connection) -> bool:
        try:
            return await connection.begun()
        except BaseException:
            connection.close()
            raise

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, connection = await loop.create_connection(
                    Connection, self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise UpstreamUnreachable(
                self._name, self._url, because("no_connection_within", seconds=CONNECT_S)
            ) from None
        except (OSError, ValueError) as error:
            raise UpstreamUnreachable(self._name, self._url, _reason(error)) from error
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            opened: socket.socket = transport.get_extra_info("socket")
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSEEN_MS)
        return connection

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed already
            for connection in self._idle:
                connection.close()
        self._idle.clear()


def _error_text(error: ConnectionError) -> str | Reason:
    """The reason why a connection ended: one of Tessera's reasons, or the system's message."""
    what = error.args[0] if len(error.args) == 1 else None
    return what if isinstance(what, Reason) else str(what or error)


def _reason(error: Exception) -> str | Reason:
    if isinstance(error, ssl.SSLCertVerificationError):
        return because("certificate_not_trusted", why=str(error.verify_message))
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)  # asyncio replaces the system's message
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

"""Connections with limits on their number, on the size and time of the request head, and on idle time.

Clients can exhaust file descriptors. When all connections are in use, the one that has been idle longest is closed.
Also the server that serves them, which sleeps while nothing happens.
"""

import asyncio
import contextlib
import json
import sys
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

# From the first byte (or the connection) to the end of the head. Source: nginx waits 60 s, Apache 20 to 40 s.
HEAD_S: Final = 30.0
# Source: h11's limit; browsers and proxies stay below 8 to 32 KiB.
HEAD_BYTES: Final = 64 << 10
# A client that reads nothing of its response for this long has gone, or blocks the model without need.
UNREAD_S: Final = 60.0
# Descriptors reserved for files, databases, runners (three each) and probes.
RESERVED: Final = 96
_LEAST: Final = 16
_MOST: Final = 4096
_WANTED_DESCRIPTORS: Final = 8192
# The same error message of the event loop is logged once per this time.
_COMPLAIN_S: Final = 60.0


def connection_limit() -> int:
    """Number of connections that fit this process's descriptors; raises the soft limit first."""
    if sys.platform == "win32":
        return _MOST
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _WANTED_DESCRIPTORS:
        limit = _WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_WANTED_DESCRIPTORS, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST
    return min(max(soft - RESERVED, _LEAST), _MOST)


class _UntilClosed(RequestResponseCycle):
    """A response to HTTP/1.0, which has no chunked encoding. Without a length it ends with the connection."""

    counted = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.counted = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            self.chunked_encoding = None if self.counted else False
        elif not self.counted:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class Connection(HttpToolsProtocol):
    """uvicorn's connection with limits. `connection_class` sets `limit`."""

    limit = _MOST

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self.last_heard = time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection; if there are too many, close an idle one first."""
        super().connection_made(transport)
        if len(self.connections) > self.limit and not self._close_idle():
            self._refuse(503, "server_busy", f"The server holds {self.limit} connections; try again later.")
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        """A request head is complete; respond to HTTP/1.0 requests in that version's format."""
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope["http_version"] == "1.0":
            self.cycle.__class__ = _UntilClosed

    def data_received(self, data: bytes) -> None:
        """Limit the size and time of a request head."""
        self.last_heard = time.monotonic()
        before = self.cycle
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.cycle is not before or self.answering:
            self._stop_timer()
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES:
            self._refuse(431, "head_too_large", f"The request's head is larger than {HEAD_BYTES} bytes.")
        elif self._head_timer is None:
            self._await_head()

    def _unsupported_upgrade_warning(self) -> None:
        """Do nothing. Clients try WebSockets on routes of other servers; the request gets a normal response."""

    def pause_writing(self) -> None:
        """The client has stopped reading its response."""
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    @property
    def answering(self) -> bool:
        """Whether a request is known and its response incomplete."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def idle(self) -> bool:
        """Whether no response is due: the client is silent, or has not sent its request completely."""
        return not self.answering or self.cycle.more_body

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._too_slow)

    def _stop_timer(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        if self._head_bytes:
            self._refuse(408, "head_too_slow", f"The request's head did not come within {HEAD_S:.0f} s.")
        else:
            self.transport.close()

    def _close_idle(self) -> bool:
        idle = [c for c in self.connections if isinstance(c, Connection) and c is not self and c.idle]
        if not idle:
            return False
        oldest = min(idle, key=lambda connection: connection.last_heard)
        self.connections.discard(oldest)  # do not count it any more, although the transport reports its end later
        oldest.transport.abort()
        return True

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Send an error response and close the connection."""
        error = {"message": message, "type": "server_error" if status >= 500 else "invalid_request_error"}
        body = json.dumps({"error": {**error, "param": None, "code": code}}).encode()
        phrase = HTTPStatus(status).phrase
        head = (
            f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def connection_class(limit: int) -> type[Connection]:
    """A `Connection` class that allows at most `limit` concurrent connections."""
    return type("Connection", (Connection,), {"limit": limit})


def quieten(loop: asyncio.AbstractEventLoop) -> None:
    """Log the same loop error once per minute: without descriptors, repeated errors would fill the disk."""
    last_logged: dict[str, float] = {}

    def complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context.get("message"))
        now = time.monotonic()
        if now - last_logged.get(message, -_COMPLAIN_S) >= _COMPLAIN_S:
            last_logged[message] = now
            loop.default_exception_handler(context)

    loop.set_exception_handler(complain)


class _DatedState(ServerState):
    """uvicorn's state of connections. It creates the date header when a response starts, not ten times a second."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._second = -1
        self._headers: list[tuple[bytes, bytes]] = []
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of every response."""
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._headers = [(b"date", formatdate(now, usegmt=True).encode()), *self._config.encoded_headers]
        return self._headers

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Ignore the value that uvicorn sets at its start."""


class SleepingServer(Server):
    """A uvicorn server that wakes when something happens. Create it in the event loop that it runs in."""

    def __init__(self, config: Config) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        super().__init__(config)
        self.server_state = _DatedState(config)

    @property
    def should_exit(self) -> bool:
        """Whether the server is to end. A signal sets it, at any instruction of the main thread."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        self._should_exit = value
        if value:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._ending.set)

    async def main_loop(self) -> None:
        """Wait for the end. uvicorn's own loop wakes ten times a second to look for it."""
        await self._ending.wait()

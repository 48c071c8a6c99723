"""HTTP/1.1 to one server over connections that are kept. A terminal's first token waits for what this imports."""

import hmac
import http.client
import json
import secrets
import select
import socket
import ssl
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from engine.core.proof import CHALLENGE_BYTES, PATH, proof

# What a path and its query may hold as they are; everything else is spelled out.
_PLAIN = "/?&=%:+,;@~!$'()*-._[]"
_AT_ONCE = 1 << 16
# A server that has just started, on a busy computer, still imports what the first such question needs.
PROOF_S = 30.0
_MOST_PROOF = 4096
Failed = (OSError, http.client.HTTPException)


class Impostor(ConnectionError):
    """Whoever listens at the address of the server does not know its token; nothing was sent there."""

    def __init__(self) -> None:
        super().__init__("another program listens at its address")


class Closed(RuntimeError):
    """This end was closed."""


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int
    content: bytes


class Wire:
    """Use from any thread; every request under way has a connection of its own.

    With a `secret` the server has to prove on each new connection that it knows it, before anything else is sent.
    """

    def __init__(self, url: str, headers: Mapping[str, str], secret: str | None = None) -> None:
        self._secret = secret
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._tls = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._headers = dict(headers)
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.closed = False

    def close(self) -> None:
        """End all connections, now and to come, on both sides: a thread that waits for its next byte goes on."""
        self.closed = True
        with self._lock:
            sockets, idle = list(self._sockets), self._idle
            self._idle = []
        for opened in sockets:
            _hang_up(opened)
        for connection in idle:
            connection.close()

    def reach(self, connect_s: float, read_s: float) -> None:
        """Connect, unless a connection is idle, and let the server prove itself. Raises: Failed, Closed."""
        connection = self._connection(connect_s, read_s)
        with self._lock:
            self._idle.append(connection)

    def ask(
        self, method: str, path: str, body: bytes | None, query: Mapping[str, Any], connect_s: float, read_s: float
    ) -> Reply:
        """Send a request and read its whole answer. Raises: Failed, Closed."""
        with self.open(method, path, body, query, connect_s, read_s) as response:
            return Reply(response.status, response.read())

    @contextmanager
    def open(
        self, method: str, path: str, body: bytes | None, query: Mapping[str, Any], connect_s: float, read_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer as it comes; its connection is kept if all of it was read. Raises: Failed, Closed."""
        connection = self._connection(connect_s, read_s)
        try:
            assert connection.sock is not None
            connection.sock.settimeout(read_s)
            headers = {**self._headers, **({"content-type": "application/json"} if body is not None else {})}
            connection.request(method, self._target(path, query), body, headers)
            with connection.getresponse() as response:
                yield response
                whole = response.isclosed() or response.length == 0
        except BaseException:
            self._drop(connection)
            raise
        with self._lock:
            reusable = whole and connection.sock is not None and not self.closed
            if reusable:
                self._idle.append(connection)
        if not reusable:
            self._drop(connection)

    def lines(self, response: http.client.HTTPResponse) -> Iterator[str]:
        """The lines of an answer as they come, without their ends. Raises: Failed, Closed."""
        remaining = b""
        while data := response.read1(_AT_ONCE):  # unlike `readline` it tells an answer that breaks off from its end
            *whole, remaining = (remaining + data).split(b"\n")
            yield from (line.decode("utf-8", "replace").rstrip("\r") for line in whole)
        if self.closed:
            raise Closed("the connection was closed")
        if response.length:
            raise http.client.IncompleteRead(remaining)
        if remaining:
            yield remaining.decode("utf-8", "replace")

    def _target(self, path: str, query: Mapping[str, Any]) -> str:
        fields = {k: str(v).lower() if isinstance(v, bool) else "" if v is None else v for k, v in query.items()}
        asked = f"{path}{'&' if '?' in path else '?'}{_query(fields)}" if fields else path
        return quote(f"{self._prefix}{asked}", safe=_PLAIN, errors="replace")

    def _connection(self, connect_s: float, read_s: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                reusable = self._idle.pop() if self._idle and not self.closed else None
            if reusable is None:
                break
            # A server that ended or grew tired of the connection has said so by now.
            if reusable.sock is not None and not select.select([reusable.sock], [], [], 0)[0]:
                return reusable
            self._drop(reusable)
        if self._tls:
            context = ssl.create_default_context()
            made: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=connect_s, context=context
            )
        else:
            made = http.client.HTTPConnection(self._host, self._port, timeout=connect_s)
        made.connect()
        with self._lock:
            self._sockets.add(made.sock)
        if self.closed:
            self._drop(made)
            raise Closed("the connection was closed")
        if self._secret is not None:
            try:
                self._prove(made, self._secret, min(read_s, PROOF_S))
            except BaseException:
                self._drop(made)
                raise
        return made

    def _prove(self, connection: http.client.HTTPConnection, secret: str, read_s: float) -> None:
        """Raises: Impostor; Failed: no answer."""
        assert connection.sock is not None
        connection.sock.settimeout(read_s)
        challenge = secrets.token_hex(CHALLENGE_BYTES)
        connection.request(
            "GET", f"{self._prefix}{PATH}?challenge={challenge}", headers={"accept": "application/json"}
        )
        with connection.getresponse() as response:
            raw = response.read(_MOST_PROOF)
            whole = response.isclosed() or response.length == 0
        try:
            answer = json.loads(raw)
            given = str(answer["proof"]) if whole and response.status == http.HTTPStatus.OK else ""
        except (ValueError, RecursionError, KeyError, TypeError):
            given = ""
        expected = proof(secret, challenge) or "-"
        if not hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode()) or connection.sock is None:
            raise Impostor

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        if connection.sock is not None:
            _hang_up(connection.sock)
        connection.close()


def _query(fields: Mapping[str, Any]) -> str:
    return urlencode(fields, doseq=True, errors="replace")


def _hang_up(opened: socket.socket) -> None:
    with suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)

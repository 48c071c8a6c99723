"""Synchronous HTTP client of one server. Use one client per thread that streams."""

import hmac
import http.client
import json
import secrets
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from app.client.chat_stream import ChatRoutes
from app.client.errors import ApiError, ServerReplaced, ServerUnreachable, UnexpectedAnswer
from app.client.transport import Body
from devices.msgspec_lock import learned
from engine.core.proof import CHALLENGE_BYTES, PATH, proof
from engine.core.sendable import encoded
from engine.core.version import __version__

# HTTP/1.1 with persistent connections to one server. These imports delay the terminal's first token.

# Characters that need no escaping in a path and its query.
_PLAIN = "/?&=%:+,;@~!$'()*-._[]"
_AT_ONCE = 1 << 16
# Right after its start, a server on a busy computer is still importing modules for the first such request.
PROOF_S = 30.0
_MOST_PROOF = 4096
Failed = (OSError, http.client.HTTPException)


class Impostor(ConnectionError):
    """The server at this address does not know the token; nothing was sent to it."""

    def __init__(self) -> None:
        super().__init__("another program listens at its address")


class Closed(RuntimeError):
    """The client was closed."""


@dataclass(frozen=True)
class Reply:
    """A complete response."""

    status: int
    content: bytes


class HttpTransport:
    """Connection pool of one server. Thread-safe: every active request has its own connection.

    With a `secret`, the server must prove on each new connection that it knows it, before anything else is sent.
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
        """Close all connections and allow no new ones; a thread that waits for its next byte continues."""
        self.closed = True
        with self._lock:
            sockets, idle = list(self._sockets), self._idle
            self._idle = []
        for opened in sockets:
            _hang_up(opened)
        for connection in idle:
            connection.close()

    def reach(self, connect_s: float, read_s: float) -> None:
        """Connect and verify the server, unless a connection is idle. Raises: Failed, Closed."""
        connection = self._connection(connect_s, read_s)
        with self._lock:
            self._idle.append(connection)

    def ask(
        self, method: str, path: str, body: bytes | None, query: Mapping[str, Any], connect_s: float, read_s: float
    ) -> Reply:
        """Send a request and read the complete response. Raises: Failed, Closed."""
        with self.open(method, path, body, query, connect_s, read_s) as response:
            return Reply(response.status, response.read())

    @contextmanager
    def open(
        self, method: str, path: str, body: bytes | None, query: Mapping[str, Any], connect_s: float, read_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        """Stream a response; its connection is reused if all of it was read. Raises: Failed, Closed."""
        connection = self._connection(connect_s, read_s)
        try:
            assert connection.sock is not None
            connection.sock.settimeout(read_s)
            headers = {**self._headers, **({"content-type": "application/json"} if body is not None else {})}
            connection.request(method, self._target(path, query), body, headers)
            if method == "POST":
                self._wait_with_load(connection.sock, read_s)
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

    def _wait_with_load(self, opened: socket.socket, read_s: float) -> None:
        """Wait for the first byte, at most `read_s` after the last progress of a model that the server loads.

        TLS may have sent bytes before; then only the socket's timeout counts.
        Raises: TimeoutError.
        """
        seen: list[Any] = []
        changed_at = time.monotonic()
        while not select.select([opened], [], [], min(LOOK_S, read_s))[0]:
            if (now := self._load_progress()) not in (None, seen):
                seen, changed_at = now, time.monotonic()
            elif time.monotonic() - changed_at >= read_s:
                raise TimeoutError(f"no response and no progress for {read_s:.0f} s")

    def _load_progress(self) -> list[Any] | None:
        """Models that are being loaded, with their phase and progress; None if the server does not report them."""
        try:
            reply = self.ask("GET", "/tessera/v1/loaded", None, {}, CONNECT_S, FIRST_S)
            models = json.loads(reply.content)["models"]
            return [(m["id"], m.get("phase"), m.get("progress")) for m in models if m["state"] == "loading"]
        except (*Failed, Closed, ValueError, LookupError, TypeError):
            return None

    def lines(self, response: http.client.HTTPResponse) -> Iterator[str]:
        """Lines of a response as they arrive, without line ends. Raises: Failed, Closed."""
        remaining = b""
        while data := response.read1(_AT_ONCE):  # unlike `readline`, it detects a broken response
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
        target = f"{path}{'&' if '?' in path else '?'}{_query(fields)}" if fields else path
        return quote(f"{self._prefix}{target}", safe=_PLAIN, errors="replace")

    def _connection(self, connect_s: float, read_s: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                reusable = self._idle.pop() if self._idle and not self.closed else None
            if reusable is None:
                break
            # If the server has closed the connection, it is readable by now.
            if reusable.sock is not None and not select.select([reusable.sock], [], [], 0)[0]:
                return reusable
            self._drop(reusable)
        if self._tls:
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=connect_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=connect_s)
        connection.connect()
        with self._lock:
            self._sockets.add(connection.sock)
        if self.closed:
            self._drop(connection)
            raise Closed("the connection was closed")
        if self._secret is not None:
            try:
                self._prove(connection, self._secret, min(read_s, PROOF_S))
            except BaseException:
                self._drop(connection)
                raise
        return connection

    def _prove(self, connection: http.client.HTTPConnection, secret: str, read_s: float) -> None:
        """Verify that the server knows the secret. Raises: Impostor; Failed: no response."""
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
            answered = str(answer["proof"]) if whole and response.status == http.HTTPStatus.OK else ""
        except (ValueError, RecursionError, KeyError, TypeError):
            answered = ""
        expected = proof(secret, challenge) or "-"
        if (
            not hmac.compare_digest(answered.encode("utf-8", "replace"), expected.encode())
            or connection.sock is None
        ):
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


T = TypeVar("T")
CONNECT_S: Final = 2.0
# Right after its start, a server on a busy computer is still importing modules for the first such request.
FIRST_S: Final = 30.0
# Streams have pings. For other responses, the time limit starts at the last progress of a load.
READ_S: Final = 600.0
# Pause between polls of that progress.
LOOK_S: Final = 30.0
NO_QUERY: Final[Mapping[str, Any]] = {}
# One decoder per response type.
_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


class ChatClient(ChatRoutes):
    """Client of one server; `pid` is its process, if known. Close it, or use it in a `with` block.

    A `local` server belongs to this user on this computer; it must first prove that it knows the token.
    This client only chats. Everything else needs a `Client`, whose types would delay the first token.
    """

    def __init__(self, url: str, token: str | None = None, pid: int = 0, *, local: bool = False) -> None:
        self.url = url
        self.token = token
        self.pid = pid
        headers = {"user-agent": f"Tessera/{__version__}"}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        self.local = local
        self._wire = HttpTransport(url, headers, token if local else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a stream in another thread ends immediately."""
        self._wire.close()

    def healthy(self) -> bool:
        """Return True if the server accepts requests."""
        return self._status("/health", CONNECT_S) == HTTPStatus.OK

    def trusted(self, patience_s: float = FIRST_S) -> bool:
        """Return True if the server responds and knows the token; another program may have its address."""
        try:
            self._wire.reach(CONNECT_S, patience_s)
        except (*Failed, Closed):
            return False
        return self.local

    def _status(self, path: str, patience_s: float) -> int:
        """Status of a GET; 0 if there is no response."""
        try:
            return self._wire.ask("GET", path, None, {}, CONNECT_S, patience_s).status
        except (*Failed, Closed):
            return 0

    def get(self, path: str, answer: type[T], **query: Any) -> T:
        """Response of a GET. `query` is added to a path without a query; an empty one changes nothing."""
        return self._exchange("GET", path, answer, None, query)

    def post(self, path: str, answer: type[T], body: Body = None) -> T:
        return self._exchange("POST", path, answer, _encoded(body))

    def put(self, path: str, answer: type[T], body: Body = None) -> T:
        return self._exchange("PUT", path, answer, _encoded(body))

    def delete(self, path: str, answer: type[T]) -> T:
        return self._exchange("DELETE", path, answer)

    def stream(self, path: str, event: type[T], body: Body = None) -> Generator[T]:
        """Yield the events of a server-sent stream, until `[DONE]` or its end.

        A frame without a name (or named `error`) that contains an `error` ends the stream. In a frame with another
        name, such as `job`, `error` is a field of the event: a failed job reports its cause.
        Raises: ApiError, ServerUnreachable.
        """
        method = "GET" if body is None else "POST"
        content = None if body is None else _encoded(body)
        name = ""
        with self._errors(), self._wire.open(method, path, content, {}, CONNECT_S, READ_S) as response:
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise _api_error(Reply(response.status, response.read()))
            for line in self._wire.lines(response):
                if not line:
                    name = ""  # an empty line ends a frame
                if line.startswith("event:"):
                    name = line[6:].strip()
                if not line.startswith("data:"):
                    continue
                payload = line[5:].strip()
                if payload == "[DONE]":
                    return
                if name in {"", "error"} and '"error"' in payload:
                    _raise_error(response.status, payload)
                yield _decoded(payload.encode(), event, path)

    def _exchange(
        self,
        method: str,
        path: str,
        answer: type[T],
        body: bytes | None = None,
        query: Mapping[str, Any] = NO_QUERY,
    ) -> T:
        with self._errors():
            reply = self._wire.ask(method, path, body, query, CONNECT_S, READ_S)
        if reply.status >= HTTPStatus.BAD_REQUEST:
            raise _api_error(reply)
        return _decoded(reply.content or b"null", answer, path)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Impostor as error:
            raise ServerReplaced(self.url) from error
        except (*Failed, Closed) as error:
            reason = "the connection was closed" if self._wire.closed else str(error) or type(error).__name__
            raise ServerUnreachable(self.url, reason) from error


def _encoded(body: Body) -> bytes:
    return b"{}" if body is None else encoded(body)


def _decoded(raw: bytes, kind: type[T], path: str) -> T:
    try:
        value: T = _decoder(kind).decode(raw)
    except (ValueError, RecursionError) as error:
        raise UnexpectedAnswer(path, str(error)) from error
    return value


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    if kind not in _DECODERS:
        _DECODERS[kind] = msgspec.json.Decoder(learned(kind))
    return _DECODERS[kind]


def _raise_error(status: int, payload: str) -> None:
    """Raise if this event reports that the streamed work failed."""
    data = json.loads(payload)
    if isinstance(data, dict) and data.get("error"):
        raise _from_body(status, data)


def _api_error(reply: Reply) -> ApiError:
    try:
        return _from_body(reply.status, json.loads(reply.content))
    except ValueError:
        text = reply.content[:200].decode("utf-8", "replace")
        return ApiError(reply.status, "http_error", f"HTTP {reply.status}: {text}")


def _from_body(status: int, body: dict[str, Any]) -> ApiError:
    error = body.get("error") or {}
    if isinstance(error, str):
        return ApiError(status, "error", error)
    if status < HTTPStatus.BAD_REQUEST:  # within a stream: derive the status from the error's type
        wrong = error.get("type") == "invalid_request_error"
        status = HTTPStatus.BAD_REQUEST if wrong else HTTPStatus.INTERNAL_SERVER_ERROR
    facts = {k: v for k, v in error.items() if k not in ("message", "type", "param", "code")}
    return ApiError(status, str(error.get("code")), str(error.get("message")), error.get("param"), facts)

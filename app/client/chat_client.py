"""One connection to one server. Synchronous; one client per thread that streams."""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final, Self, TypeVar

import msgspec

from app.client.chat_routes import ChatRoutes
from app.client.errors import ApiError, ServerReplaced, ServerUnreachable, UnexpectedAnswer
from app.client.http_transport import Closed, Failed, Impostor, Reply, Wire
from app.client.transport import Body
from devices.msgspec_lock import learned
from engine.core.sendable import encoded
from engine.core.version import __version__

T = TypeVar("T")
CONNECT_S: Final = 2.0
# A server that has just started, on a busy computer, still imports what the first such question needs.
FIRST_S: Final = 30.0
# Loading a large model from a slow disk takes minutes; the server pings in between.
READ_S: Final = 600.0
NO_QUERY: Final[Mapping[str, Any]] = {}
# Made once for each kind of answer.
_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


class ChatClient(ChatRoutes):
    """Speaks to one server, process `pid` where that is known. Close it, or use it in a `with` block.

    A `local` server is one of this user's own on this computer: it proves that it knows the token, before all else.
    All but a chat needs a `Client`, whose types take longer to import than a first token may.
    """

    def __init__(self, url: str, token: str | None = None, pid: int = 0, *, local: bool = False) -> None:
        self.url = url
        self.token = token
        self.pid = pid
        headers = {"user-agent": f"Tessera/{__version__}"}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        self.local = local
        self._wire = Wire(url, headers, token if local else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a stream that another thread waits for ends at once."""
        self._wire.close()

    def healthy(self) -> bool:
        """The server takes requests."""
        return self._status("/health", CONNECT_S) == HTTPStatus.OK

    def trusted(self, patience_s: float = FIRST_S) -> bool:
        """The server is there and knows this client's token: another program may have taken over the address."""
        try:
            self._wire.reach(CONNECT_S, patience_s)
        except (*Failed, Closed):
            return False
        return self.local

    def _status(self, path: str, patience_s: float) -> int:
        """What a GET is answered with; 0: not at all."""
        try:
            return self._wire.ask("GET", path, None, {}, CONNECT_S, patience_s).status
        except (*Failed, Closed):
            return 0

    def get(self, path: str, answer: type[T], **query: Any) -> T:
        """The answer of a GET. `query` is added to a path without a query; without any the path keeps its own."""
        return self._ask("GET", path, answer, None, query)

    def post(self, path: str, answer: type[T], body: Body = None) -> T:
        """The answer of a POST."""
        return self._ask("POST", path, answer, _encoded(body))

    def put(self, path: str, answer: type[T], body: Body = None) -> T:
        """The answer of a PUT."""
        return self._ask("PUT", path, answer, _encoded(body))

    def delete(self, path: str, answer: type[T]) -> T:
        """The answer of a DELETE."""
        return self._ask("DELETE", path, answer)

    def stream(self, path: str, event: type[T], body: Body = None) -> Generator[T]:
        """The events of a server-sent stream, up to its `[DONE]` or its end.

        A frame without a name (or named `error`) that holds an `error` ends the stream. In one with a name of its
        own, such as `job`, that is a field of what is told: a failed job says why.

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

    def _ask(
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
        found: T = _decoder(kind).decode(raw)
    except (ValueError, RecursionError) as error:
        raise UnexpectedAnswer(path, str(error)) from error
    return found


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    if kind not in _DECODERS:
        _DECODERS[kind] = msgspec.json.Decoder(learned(kind))
    return _DECODERS[kind]


def _raise_error(status: int, payload: str) -> None:
    """Raise if this event says that the work behind the stream failed."""
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
    if status < HTTPStatus.BAD_REQUEST:  # told in a stream that had begun: the client is at fault all the same
        wrong = error.get("type") == "invalid_request_error"
        status = HTTPStatus.BAD_REQUEST if wrong else HTTPStatus.INTERNAL_SERVER_ERROR
    facts = {k: v for k, v in error.items() if k not in ("message", "type", "param", "code")}
    return ApiError(status, str(error.get("code")), str(error.get("message")), error.get("param"), facts)

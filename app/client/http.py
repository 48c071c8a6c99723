"""One connection to one server. Synchronous; one client per thread that streams."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

import httpx2
import msgspec
from httpx2 import codes

from app.client.errors import ApiError, ServerUnreachable, UnexpectedAnswer
from app.client.routes import Body, Routes
from engine.open_sockets import OpenSockets
from engine.paths import Paths, user_paths
from engine.version import __version__

T = TypeVar("T")
CONNECT_S: Final = 2.0
# A server that has just started, on a busy computer, still imports what the first such question needs.
FIRST_S: Final = 10.0
# Loading a large model from a slow disk takes minutes; the server pings in between.
READ_S: Final = 600.0
_JSON: Final = {"content-type": "application/json"}


class Client(Routes):
    """Speaks to one server, process `pid` where that is known. Close it, or use it in a `with` block."""

    def __init__(self, url: str, token: str | None = None, pid: int = 0) -> None:
        self.url = url
        self.token = token
        self.pid = pid
        headers = {"user-agent": f"Tessera/{__version__}"}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        timeout = httpx2.Timeout(READ_S, connect=CONNECT_S)
        self._sockets = OpenSockets()
        # Reading the system's certificates takes 50 ms of processor, which a server without TLS has no use for.
        tls = not url.startswith("http://")
        self._http = httpx2.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False, verify=tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a stream that another thread waits for ends at once."""
        self._sockets.hang_up()
        self._http.close()

    def healthy(self) -> bool:
        """The server takes requests."""
        try:
            return self._http.get("/health", timeout=CONNECT_S).status_code == codes.OK
        except httpx2.HTTPError:
            return False

    def trusted(self) -> bool:
        """The server takes requests, and this client's token: another server may have taken over the address."""
        try:
            patience = httpx2.Timeout(FIRST_S, connect=CONNECT_S)
            status = self._http.get("/tessera/v1/aliases", timeout=patience).status_code
        except (httpx2.HTTPError, RuntimeError):
            return False
        return status not in {codes.UNAUTHORIZED, codes.FORBIDDEN, codes.TOO_MANY_REQUESTS}

    def get(self, path: str, answer: type[T], **query: Any) -> T:
        """The answer of a GET. `query` is added to a path without a query; without any the path keeps its own."""
        return self._ask("GET", path, answer, params=query or None)

    def post(self, path: str, answer: type[T], body: Body = None) -> T:
        """The answer of a POST."""
        return self._ask("POST", path, answer, content=_encoded(body), headers=_JSON)

    def put(self, path: str, answer: type[T], body: Body = None) -> T:
        """The answer of a PUT."""
        return self._ask("PUT", path, answer, content=_encoded(body), headers=_JSON)

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
        watch = {"trace": self._sockets.trace}
        name = ""
        with (
            self._errors(),
            self._http.stream(method, path, content=content, headers=_JSON, extensions=watch) as response,
        ):
            if response.status_code >= codes.BAD_REQUEST:
                response.read()
                raise _api_error(response)
            for line in response.iter_lines():
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
                    _raise_error(response.status_code, payload)
                yield _decoded(payload.encode(), event, path)

    def _ask(self, method: str, path: str, answer: type[T], **arguments: Any) -> T:
        with self._errors():
            response = self._http.request(method, path, **arguments)
        if response.status_code >= codes.BAD_REQUEST:
            raise _api_error(response)
        return _decoded(response.content or b"null", answer, path)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except httpx2.HTTPError as error:
            raise ServerUnreachable(self.url, str(error) or type(error).__name__) from error
        except RuntimeError as error:
            if not self._http.is_closed:
                raise
            raise ServerUnreachable(self.url, "the connection was closed") from error


def _encoded(body: Body) -> bytes:
    return b"{}" if body is None else msgspec.json.encode(body)


def _decoded(raw: bytes, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, RecursionError) as error:
        raise UnexpectedAnswer(path, str(error)) from error


def _raise_error(status: int, payload: str) -> None:
    """Raise if this event says that the work behind the stream failed."""
    data = json.loads(payload)
    if isinstance(data, dict) and data.get("error"):
        raise _from_body(status, data)


def _api_error(response: httpx2.Response) -> ApiError:
    try:
        return _from_body(response.status_code, response.json())
    except ValueError:
        return ApiError(response.status_code, "http_error", f"HTTP {response.status_code}: {response.text[:200]}")


def _from_body(status: int, body: dict[str, Any]) -> ApiError:
    error = body.get("error") or {}
    if isinstance(error, str):
        return ApiError(status, "error", error)
    if status < codes.BAD_REQUEST:  # told in a stream that had begun: the client is at fault all the same
        wrong = error.get("type") == "invalid_request_error"
        status = codes.BAD_REQUEST if wrong else codes.INTERNAL_SERVER_ERROR
    facts = {k: v for k, v in error.items() if k not in ("message", "type", "param", "code")}
    return ApiError(status, str(error.get("code")), str(error.get("message")), error.get("param"), facts)


def running_server(paths: Paths | None = None) -> Client | None:
    """A client for this user's running server, or None. The file of a server that crashed names a dead process.

    Where the user chose a server on another machine (`tessera connect`), a client for that.
    Raises: ApiError: the chosen one does not answer, or refuses the key.
    """
    from app.remote_server import RemoteServer  # noqa: PLC0415 - it makes clients

    chosen = RemoteServer(paths).client()
    if chosen is not None:
        try:
            chosen.chat_models()
        except BaseException:
            chosen.close()
            raise
        return chosen
    try:
        found = json.loads((paths or user_paths()).server_file.read_text())
        client = Client(str(found["url"]), str(found["token"]), int(found["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if client.trusted():
        return client
    client.close()
    return None

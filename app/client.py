"""The local server as the terminal and the window use it. Synchronous; one client per thread that streams."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import httpx2

from engine.open_sockets import OpenSockets
from engine.paths import Paths, user_paths
from engine.version import __version__

CONNECT_S: Final = 2.0
# Loading a large model from a slow disk takes minutes; the server pings in between.
READ_S: Final = 600.0


@dataclass
class ApiError(Exception):
    """The server's answer to a request it did not fulfil."""

    status: int
    code: str
    message: str
    param: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


class ServerUnreachable(Exception):
    """No server answers at `url`."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"No Tessera server answers at {url} ({reason}).")
        self.url = url


@dataclass(frozen=True)
class Answer:
    """A piece of a streamed answer. The last one carries `finish_reason`, usage and timings."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, float] | None = None


class Client:
    """Speaks to one server. Close it, or use it in a `with` block."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        self.token = token
        headers = {"user-agent": f"Tessera/{__version__}"}
        headers |= {"authorization": f"Bearer {token}"} if token else {}
        timeout = httpx2.Timeout(READ_S, connect=CONNECT_S)
        self._sockets = OpenSockets()
        self._http = httpx2.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False)

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
            return self._http.get("/health", timeout=CONNECT_S).status_code == httpx2.codes.OK
        except httpx2.HTTPError:
            return False

    def get(self, path: str, **params: Any) -> Any:
        """JSON of a GET."""
        return self._json("GET", path, params=params)

    def text(self, path: str) -> str:
        """Text of a GET."""
        with self._errors():
            response = self._http.get(path)
        if response.status_code >= httpx2.codes.BAD_REQUEST:
            raise _api_error(response)
        return response.text

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """JSON of a POST."""
        return self._json("POST", path, json=body or {})

    def delete(self, path: str) -> Any:
        """JSON of a DELETE."""
        return self._json("DELETE", path)

    def models(self) -> list[dict[str, Any]]:
        """Models the server can load."""
        found: list[dict[str, Any]] = self.get("/v1/models")["data"]
        return found

    def chat(self, model: str, messages: list[dict[str, Any]], **options: Any) -> Iterator[Answer]:
        """Stream an answer. Closing the iterator stops the generation.

        Raises: ApiError, ServerUnreachable.
        """
        yield from answers(self.events("/v1/chat/completions", chat_body(model, messages, options)))

    def events(
        self, path: str, body: dict[str, Any] | None = None, method: str = "POST"
    ) -> Iterator[dict[str, Any]]:
        """The JSON events of a server-sent stream, up to its `[DONE]` or its end."""
        watch = {"trace": self._sockets.trace}
        with self._errors(), self._http.stream(method, path, json=body, extensions=watch) as response:
            if response.status_code >= httpx2.codes.BAD_REQUEST:
                response.read()
                raise _api_error(response)
            for line in response.iter_lines():
                if not line.startswith("data:"):
                    continue
                payload = line[5:].strip()
                if payload == "[DONE]":
                    return
                data = json.loads(payload)
                if data.get("error"):
                    raise _from_body(response.status_code, data)
                yield data

    def _json(self, method: str, path: str, **arguments: Any) -> Any:
        with self._errors():
            response = self._http.request(method, path, **arguments)
        if response.status_code >= httpx2.codes.BAD_REQUEST:
            raise _api_error(response)
        return response.json() if response.content else None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except httpx2.HTTPError as error:
            raise ServerUnreachable(self.url, str(error) or type(error).__name__) from error


def chat_body(model: str, messages: list[dict[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """The request for a streamed answer with its usage."""
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    return {"model": model, "messages": messages, **stream, **options}


def answers(events: Iterable[dict[str, Any]]) -> Iterator[Answer]:
    """The pieces of an answer out of the chunks of its stream."""
    finish = None
    for data in events:
        for choice in data.get("choices", ()):
            delta = choice.get("delta", {})
            finish = choice.get("finish_reason") or finish
            text, reasoning = delta.get("content") or "", delta.get("reasoning_content") or ""
            calls = tuple(delta.get("tool_calls") or ())
            if text or reasoning or calls:
                yield Answer(text=text, reasoning=reasoning, tool_calls=calls)
        if data.get("usage"):
            yield Answer(finish_reason=finish, usage=data["usage"], timings=data.get("timings"))


def _api_error(response: httpx2.Response) -> ApiError:
    try:
        return _from_body(response.status_code, response.json())
    except ValueError:
        return ApiError(response.status_code, "http_error", f"HTTP {response.status_code}: {response.text[:200]}")


def _from_body(status: int, body: dict[str, Any]) -> ApiError:
    error = body.get("error") or {}
    if isinstance(error, str):
        return ApiError(status, "error", error)
    facts = {k: v for k, v in error.items() if k not in ("message", "type", "param", "code")}
    return ApiError(status, str(error.get("code")), str(error.get("message")), error.get("param"), facts)


def running_server(paths: Paths | None = None) -> Client | None:
    """A client for this user's running server, or None."""
    try:
        found = json.loads((paths or user_paths()).server_file.read_text())
        client = Client(str(found["url"]), str(found["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if client.healthy():
        return client
    client.close()
    return None

"""Abstract HTTP interface to a server. Calls block and raise ApiError."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from app.client.errors import ApiError
from engine.core.sendable import sendable

T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """Values as they arrive, until the server ends the stream or it is closed."""

    def __iter__(self) -> Iterator[T_co]:
        """Yield values as they arrive. Raises: ApiError."""
        ...

    def close(self) -> None:
        """Close the stream; the server then stops its work on it."""
        ...


T = TypeVar("T")
Body = msgspec.Struct | Mapping[str, Any] | None
OURS: Final = "/tessera/v1"


class Transport(ABC):
    """The five kinds of requests to a server."""

    @abstractmethod
    def get(self, path: str, answer: type[T], **query: Any) -> T:
        """Response of a GET. `query` is added to a path without a query."""

    @abstractmethod
    def post(self, path: str, answer: type[T], body: Body = None) -> T:
        """Response of a POST."""

    @abstractmethod
    def put(self, path: str, answer: type[T], body: Body = None) -> T:
        """Response of a PUT."""

    @abstractmethod
    def delete(self, path: str, answer: type[T]) -> T:
        """Response of a DELETE."""

    @abstractmethod
    def stream(self, path: str, event: type[T], body: Body = None) -> Stream[T]:
        """Server-sent events: of a POST with a body, of a GET without."""


def path_part(text: str) -> str:
    """Quote a name for use as one path segment. Raises: ApiError: it is empty, so the path would be another one."""
    if not text:
        raise ApiError(HTTPStatus.BAD_REQUEST, "empty_name", "The name is empty.")
    return quote(sendable(text), safe="")


P = ParamSpec("P")


class Route(Generic[P, T]):
    """A route as a method: `pin = Route[[str, str], Pinned]("post", "/models/{}/pin", Pinned, PinRequest)`.

    The arguments fill the placeholders of the path; one more is the body, or the only field of the struct `wraps`.
    """

    def __init__(self, verb: str, path: str, answer: type[T], wraps: type[msgspec.Struct] | None = None) -> None:
        self._verb, self._path, self._answer, self._wraps = verb, OURS + path, answer, wraps

    def __get__(self, transport: Transport, owner: type[Transport]) -> Callable[P, T]:
        return partial(self._call, transport)

    def _call(self, transport: Transport, *arguments: Any) -> T:
        gaps = self._path.count("{}")
        path = self._path.format(*(path_part(str(part)) for part in arguments[:gaps]))
        body = arguments[gaps:]
        if self._wraps is not None:
            body = (self._wraps(**dict(zip(self._wraps.__struct_fields__, body, strict=True))),)
        answer: T = getattr(transport, self._verb)(path, self._answer, *body)
        return answer

"""How a server is asked, over any connection to it. Calls block and raise ApiError."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from engine.core.sendable import sendable

T_co = TypeVar("T_co", covariant=True)


class Stream(Protocol[T_co]):
    """Values as they arrive, until the server ends or somebody closes it."""

    def __iter__(self) -> Iterator[T_co]:
        """Values as they arrive. Raises: ApiError."""
        ...

    def close(self) -> None:
        """End the stream; the server stops the work behind it."""
        ...


T = TypeVar("T")
Body = msgspec.Struct | Mapping[str, Any] | None
OURS: Final = "/tessera/v1"


class Asking(ABC):
    """The five ways to ask a server."""

    @abstractmethod
    def get(self, path: str, answer: type[T], **query: Any) -> T:
        """The answer of a GET. `query` is added to a path without a query."""

    @abstractmethod
    def post(self, path: str, answer: type[T], body: Body = None) -> T:
        """The answer of a POST."""

    @abstractmethod
    def put(self, path: str, answer: type[T], body: Body = None) -> T:
        """The answer of a PUT."""

    @abstractmethod
    def delete(self, path: str, answer: type[T]) -> T:
        """The answer of a DELETE."""

    @abstractmethod
    def stream(self, path: str, event: type[T], body: Body = None) -> Stream[T]:
        """Server-sent events: of a POST with a body, of a GET without."""


def path_part(text: str) -> str:
    """A name as one part of a path."""
    return quote(sendable(text), safe="")

"""What the window needs of the local server, as a small protocol, and its errors in words."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from PySide6.QtCore import QCoreApplication


class ApiError(Exception):
    """The server refused or is not there. `status` 0: no connection. `facts` are the error object's fields."""

    def __init__(self, status: int, message: str, code: str = "", facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.facts = dict(facts or {})


class EventSource(Protocol):
    """A stream of JSON objects that another thread may close."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Objects as they arrive. Raises ApiError."""

    def close(self) -> None:
        """End the stream; the server stops the work behind it."""


class Api(Protocol):
    """The local server. Calls block: they belong on worker threads. All raise ApiError."""

    def get(self, path: str) -> Any:
        """A JSON answer."""

    def text(self, path: str) -> str:
        """A plain answer."""

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """A JSON answer to a JSON body."""

    def delete(self, path: str) -> Any:
        """A JSON answer."""

    def stream(self, path: str, body: Mapping[str, Any] | None = None) -> EventSource:
        """Server-sent events: POST with a body, GET without."""


def in_words(error: Exception) -> str:
    """What happened and what to do next, for a banner."""
    if isinstance(error, ApiError):
        if error.status == 0:
            return QCoreApplication.translate(
                "api", "The server does not answer. It may be starting; if not, start it on the Server page."
            )
        return error.message
    return str(error) or type(error).__name__

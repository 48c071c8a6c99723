"""What can go wrong between a client and the server; the status 0 means that there was no answer."""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from engine.jobs.job_types import Fault


@dataclass
class ApiError(Exception):
    """The server's answer to a request it did not fulfil; `facts` are further fields of its error object."""

    status: int
    code: str
    message: str
    param: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


class JobFailed(ApiError):
    """A job ended without its result."""

    def __init__(self, fault: Fault) -> None:
        wrong = HTTPStatus.BAD_REQUEST if fault.blame == "request" else HTTPStatus.INTERNAL_SERVER_ERROR
        super().__init__(wrong, fault.code, fault.message, None, fault.facts)


class ServerUnreachable(ApiError):
    """No server answers at `url`."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(0, "unreachable", f"No Tessera server answers at {url} ({reason}).")
        self.url = url


class ServerReplaced(ServerUnreachable):
    """Another program, or another server, listens at `url` now; the client sent it nothing."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "another program listens there")


class ServerNotStarted(ApiError):
    """A server was started but does not take requests; `reason` is the last that it said."""

    def __init__(self, reason: str) -> None:
        super().__init__(0, "server_not_started", f"The server did not start. {reason}".rstrip())


class UnexpectedAnswer(ApiError):
    """The answer is not of the shape that this version knows."""

    def __init__(self, path: str, reason: str) -> None:
        words = f"The server's answer to {path} is not understood ({reason}). Is it of another version? Restart it."
        super().__init__(0, "unexpected_answer", words)

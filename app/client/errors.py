"""Errors between a client and the server; status 0 means that there was no response."""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from engine.jobs.job_types import Fault


@dataclass
class ApiError(Exception):
    """Error response of the server; `facts` are the other fields of its error object."""

    status: int
    code: str
    message: str
    param: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message


class JobFailed(ApiError):
    """A job ended without a result."""

    def __init__(self, fault: Fault) -> None:
        wrong = HTTPStatus.BAD_REQUEST if fault.blame == "request" else HTTPStatus.INTERNAL_SERVER_ERROR
        super().__init__(wrong, fault.code, fault.message, None, fault.facts)


class ServerUnreachable(ApiError):
    """No server responds at `url`."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(0, "unreachable", f"No Tessera server answers at {url} ({reason}).")
        self.url = url


class ServerReplaced(ServerUnreachable):
    """Another program or server now uses `url`; the client sent it nothing."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "another program listens there")


class ServerNotStarted(ApiError):
    """A server was started but does not accept requests; `reason` is its last output."""

    def __init__(self, reason: str) -> None:
        super().__init__(0, "server_not_started", f"The server did not start. {reason}".rstrip())


class UnexpectedAnswer(ApiError):
    """The response does not have the format that this version expects."""

    def __init__(self, path: str, reason: str) -> None:
        words = f"The server's answer to {path} is not understood ({reason}). Is it of another version? Restart it."
        super().__init__(0, "unexpected_answer", words)

"""The local server as the terminal and the window use it. What only a `Client` needs is imported with it."""

from typing import TYPE_CHECKING, Any

from app.client.chat_client import ChatClient
from app.client.chat_stream import Answer, AnswerStream, ToolCalls, WholeAnswer, answers, chat_body
from app.client.errors import ApiError, JobFailed, ServerNotStarted, ServerUnreachable, UnexpectedAnswer
from app.client.transport import Stream

if TYPE_CHECKING:
    from app.client.routes import Client, Routes, local_server, running_server

__all__ = [
    "Answer",
    "AnswerStream",
    "ApiError",
    "ChatClient",
    "Client",
    "JobFailed",
    "Routes",
    "ServerNotStarted",
    "ServerUnreachable",
    "Stream",
    "ToolCalls",
    "UnexpectedAnswer",
    "WholeAnswer",
    "answers",
    "chat_body",
    "local_server",
    "running_server",
]


def __getattr__(name: str) -> Any:
    """What is imported only where it is asked for: a chat's first token does not wait for its types."""
    if name not in ("Client", "Routes", "local_server", "running_server"):
        raise AttributeError(name)
    from app.client import routes  # noqa: PLC0415 - see above

    return getattr(routes, name)

"""Client of the local server for terminal and window. Types that only `Client` needs are imported on first use."""

from typing import TYPE_CHECKING, Any

from app.client.chat_client import ChatClient
from app.client.chat_stream import AnswerStream, ChatDelta, ChatResponse, ToolCalls, answers, chat_body
from app.client.errors import ApiError, JobFailed, ServerNotStarted, ServerUnreachable, UnexpectedAnswer
from app.client.transport import Stream

if TYPE_CHECKING:
    from app.client.routes import Client, Routes, running_server


def __getattr__(name: str) -> Any:
    """Import on first use, so that a chat's first token does not wait for types that it does not need."""
    if name not in ("Client", "Routes", "running_server"):
        raise AttributeError(name)
    from app.client import routes

    return getattr(routes, name)

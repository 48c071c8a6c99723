"""The local server as the terminal and the window use it."""

from app.client.answers import Answer, AnswerStream, ToolCall, ToolCalls, WholeAnswer, answers, chat_body
from app.client.errors import ApiError, ServerNotStarted, ServerUnreachable, UnexpectedAnswer
from app.client.http import Client, running_server
from app.client.routes import Routes
from app.client.stream import Stream

__all__ = [
    "Answer",
    "AnswerStream",
    "ApiError",
    "Client",
    "Routes",
    "ServerNotStarted",
    "ServerUnreachable",
    "Stream",
    "ToolCall",
    "ToolCalls",
    "UnexpectedAnswer",
    "WholeAnswer",
    "answers",
    "chat_body",
    "running_server",
]

"""The local server as the terminal and the window use it."""

from app.client.answers import Answer, AnswerStream, ToolCall, ToolCalls, WholeAnswer, answers, chat_body
from app.client.errors import ApiError, JobFailed, ServerNotStarted, ServerUnreachable, UnexpectedAnswer
from app.client.http import Client, local_server, running_server
from app.client.routes import Routes
from app.client.stream import Stream

__all__ = [
    "Answer",
    "AnswerStream",
    "ApiError",
    "Client",
    "JobFailed",
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
    "local_server",
    "running_server",
]

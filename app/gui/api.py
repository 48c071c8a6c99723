"""Errors of the server in the window's words."""

from PySide6.QtCore import QCoreApplication

from app.client import ServerUnreachable
from app.error_text import describe


def in_words(error: BaseException) -> str:
    """What happened and what to do next, for a banner."""
    if isinstance(error, ServerUnreachable):
        return QCoreApplication.translate(
            "api", "The server does not answer. It may be starting; if not, start it on the Server page."
        )
    return describe(error)

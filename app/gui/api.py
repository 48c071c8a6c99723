"""Errors of the server in the window's words."""

from PySide6.QtCore import QCoreApplication

from app.client import ServerUnreachable
from app.error_text import describe
from app.gui import formatted
from engine.api.jobs import Job


def error_message(error: BaseException) -> str:
    """What happened and what to do next, for a banner."""
    if isinstance(error, ServerUnreachable):
        return QCoreApplication.translate(
            "api", "The server does not answer. It may be starting; if not, start it on the Server page."
        )
    return formatted.sentence(describe(error))


def failure_of(job: Job) -> str:
    """Why a job failed or stands still, for a banner or its card; empty where nobody knows."""
    return formatted.sentence(job.error.message) if job.error is not None else ""

"""Errors of the server in the window's words."""

from PySide6.QtCore import QCoreApplication

from app.client import ApiError, ServerUnreachable
from app.error_text import describe
from app.gui import formatted
from app.gui.reasons import translated
from engine.api.jobs import Job


def error_message(error: BaseException) -> str:
    """What happened and what to do next, for a banner."""
    if isinstance(error, ServerUnreachable):
        return QCoreApplication.translate(
            "api", "The server does not answer. It may be starting; if not, start it on the Server page."
        )
    facts = error.facts if isinstance(error, ApiError) else {}
    return formatted.sentence(translated(facts.get("detail"), describe(error)))


def failure_of(job: Job) -> str:
    """Why a job failed or stands still, for a banner or its card; empty where nobody knows."""
    if job.error is None:
        return ""
    return formatted.sentence(translated(job.error.facts.get("detail"), job.error.message))

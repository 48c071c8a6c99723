"""What would be lost by closing the window now."""

from typing import Any

from PySide6.QtCore import QCoreApplication

from app.gui.jobs import ENDED
from app.gui.library.job_card import title_of

# A paused or running download goes on where it stopped; what is computed would begin anew.
_LOSES_WORK = frozenset({"quantize", "convert", "bench"})


def would_be_lost(jobs: dict[str, dict[str, Any]], *, server_ends: bool) -> list[str]:
    """Titles of the work that would have to begin anew; empty where the server goes on without the window."""
    if not server_ends:
        return []
    return [
        title_of(job)
        for job in jobs.values()
        if job.get("kind") in _LOSES_WORK and job.get("state") not in {*ENDED, "paused"}
    ]


def question(lost: list[str]) -> str:
    """What to ask before closing."""
    return _tr("This is not finished and would begin anew: {work}. Close all the same?").format(
        work=", ".join(lost)
    )


def _tr(text: str) -> str:
    return QCoreApplication.translate("leaving", text)

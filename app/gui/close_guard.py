"""Lists the work that closing the window would lose."""

from pathlib import Path

from PySide6.QtCore import QCoreApplication, QUrl
from PySide6.QtGui import QDesktopServices

from app.gui.job_card import title_of
from engine.api.jobs import Job


def would_be_lost(jobs: dict[str, Job], *, server_ends: bool) -> list[str]:
    """Titles of unfinished jobs that would have to restart. Empty if the server outlives the window."""
    if not server_ends:
        return []
    return [
        title_of(job) for job in jobs.values() if job.kind.loses_work and not job.ended and job.state != "paused"
    ]


def question(lost: list[str]) -> str:
    """The question to show before closing."""
    return _tr("Not finished, and would start from the beginning: {work}. Close anyway?").format(
        work=", ".join(lost)
    )


def _tr(text: str) -> str:
    return QCoreApplication.translate("leaving", text)


def show_in_folder(path: str) -> None:
    """Open a folder, or the folder that contains a file."""
    file = Path(path)
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(file if file.is_dir() else file.parent)))

"""A job under way: what, how far, how long, and the buttons to pause and cancel it."""

from typing import Any

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QFrame, QProgressBar, QVBoxLayout, QWidget

from app.gui import words
from app.gui.jobs import ENDED, Jobs
from app.gui.look import Look
from app.gui.widgets.basics import IconButton, clear, label, row, stack

_STEPS = 1000


class JobCard(QFrame):
    """One job; `show_job` brings it up to date."""

    def __init__(self, look: Look, jobs: Jobs, job: dict[str, Any]) -> None:
        super().__init__()
        self._jobs = jobs
        self._id = job["id"]
        self.setProperty("kind", "card")
        self._title = label("", "strong")
        self._note = label("", "small", wrap=True)
        self._bar = QProgressBar()
        self._bar.setTextVisible(False)
        self._bar.setAccessibleName(self.tr("Progress"))
        self._pause = IconButton(look, "pause", self.tr("Pause"), self._on_pause)
        self._cancel = IconButton(look, "close", self.tr("Cancel"), lambda: jobs.do(self._id, "cancel"))
        self.setLayout(
            stack(
                row(self._title, 1, self._pause, self._cancel, spacing=4),
                self._bar,
                self._note,
                spacing=8,
                margins=(16, 12, 12, 12),
            )
        )
        self.show_job(job)

    def show_job(self, job: dict[str, Any]) -> None:
        """Show the state of the job."""
        self._job = job
        progress = job.get("progress") or {}
        done, total = progress.get("done") or 0, progress.get("total") or 0
        self._title.setText(title_of(job))
        self._bar.setRange(0, _STEPS if total else 0)
        if total:
            self._bar.setValue(round(_STEPS * min(done / total, 1)))
        self._bar.setVisible(job["state"] not in ENDED)
        self._note.setText(note_of(job))
        ended, paused = job["state"] in ENDED, job["state"] in {"paused", "failed"}
        self._pause.setVisible(not ended or job["state"] == "failed")
        self._pause.set_icon("play" if paused else "pause")
        self._pause.set_words(self.tr("Resume") if paused else self.tr("Pause"))
        self._cancel.setVisible(job["state"] != "done")

    def _on_pause(self) -> None:
        self._jobs.do(self._id, "resume" if self._job["state"] in {"paused", "failed"} else "pause")


class JobList(QWidget):
    """The jobs that are not finished, newest first."""

    def __init__(self, look: Look, jobs: Jobs, kinds: frozenset[str] | None = None) -> None:
        super().__init__()
        self._look, self._jobs, self._kinds = look, jobs, kinds
        self._cards: dict[str, JobCard] = {}
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setAlignment(Qt.AlignmentFlag.AlignTop)
        jobs.changed.connect(self._on_changed)
        clear(self._column)
        for job in jobs.by_id.values():
            self._on_changed(job)
        self._show_or_hide()

    def _on_changed(self, job: dict[str, Any]) -> None:
        if self._kinds is not None and job["kind"] not in self._kinds:
            return
        card = self._cards.get(job["id"])
        if job["state"] in {"done", "cancelled"}:
            if card is not None:
                del self._cards[job["id"]]
                card.hide()
                card.deleteLater()
        elif card is not None:
            card.show_job(job)
        else:
            made = JobCard(self._look, self._jobs, job)
            self._cards[job["id"]] = made
            self._column.insertWidget(0, made)
        self._show_or_hide()

    def _show_or_hide(self) -> None:
        self.setVisible(bool(self._cards))


def title_of(job: dict[str, Any]) -> str:
    """What the job does, in words."""
    verbs = {
        "pull": tr("Downloading {name}"),
        "import": tr("Importing {name}"),
        "verify": tr("Checking {name}"),
        "quantize": tr("Making {name} fit"),
    }
    return verbs.get(job["kind"], "{name}").format(name=job.get("title") or job["id"])


def note_of(job: dict[str, Any]) -> str:
    """How far it is, or why it stands."""
    progress, error = job.get("progress") or {}, job.get("error") or {}
    if job["state"] == "failed":
        return str(error.get("message") or tr("It failed."))
    parts: list[str] = []
    if job["state"] == "paused":
        parts.append(str(error.get("message") or tr("Paused")))
    if job["state"] == "queued":
        parts.append(tr("Waiting for its turn"))
    parts += [str(progress.get("phase") or "").replace("_", " "), amount_of(progress)]
    if progress.get("stalled"):
        parts.append(tr("stalled"))
    elif progress.get("eta_s"):
        parts.append(tr("{time} left").format(time=words.duration(progress["eta_s"])))
    parts.append(str(progress.get("note") or ""))
    return " · ".join(part for part in parts if part)


def amount_of(progress: dict[str, Any]) -> str:
    """How much of how much, and how fast."""
    total = progress.get("total") or 0
    if not total:
        return ""
    if progress.get("unit") == "%":
        return f"{words.whole(100 * progress['done'] / total)} %"
    if progress.get("unit") != "bytes":
        return tr("{done} of {total} {unit}").format(
            done=words.whole(progress["done"]), total=words.whole(total), unit=progress.get("unit", "")
        )
    text = tr("{done} of {total}").format(done=words.size(progress["done"]), total=words.size(total))
    return f"{text} · {words.size(progress['speed'])}/s" if progress.get("speed") else text


def tr(text: str) -> str:
    """Translate in this module's context."""
    return QCoreApplication.translate("jobs", text)

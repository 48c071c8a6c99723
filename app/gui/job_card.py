"""Job card: title, progress, remaining time, and buttons to pause, finish and cancel."""

from PySide6.QtCore import QCoreApplication, QPoint, Qt, QTimer
from PySide6.QtGui import QCursor
from PySide6.QtWidgets import QFrame, QProgressBar, QVBoxLayout, QWidget

from app.gui import formatted
from app.gui.jobs import Jobs
from app.gui.reasons import failure_of, translated
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, clear, label, row, stack
from engine.api.jobs import Job, JobKind, Progress

_STEPS = 1000
_STILL_MS = 2000  # a pointer that has rested for so long is not about to click
_DOWNLOAD = frozenset({"planning", "downloading", "verifying"})


class JobCard(QFrame):
    """Shows one job. `show_job` updates it."""

    def __init__(self, theme: Theme, jobs: Jobs, job: Job) -> None:
        super().__init__()
        self._jobs = jobs
        self._id = job.id
        self.setProperty("kind", "card")
        self._title = label("", "strong")
        self._note = label("", "small", wrap=True)
        self._bar = QProgressBar(textVisible=False)
        self._bar.setAccessibleName(self.tr("Progress"))
        self._pause = IconButton(theme, "pause", self.tr("Pause"), self._on_pause)
        self._finish = IconButton(
            theme, "check", self.tr("Stop and keep the file so far"), lambda: jobs.do(self._id, "finish")
        )
        self._cancel = IconButton(theme, "close", self.tr("Cancel"), lambda: jobs.do(self._id, "cancel"))
        self.setLayout(
            stack(
                row(self._title, 1, self._finish, self._pause, self._cancel, spacing=4),
                self._bar,
                self._note,
                spacing=8,
                margins=(16, 12, 16, 12),
            )
        )
        self.show_job(job)

    def show_job(self, job: Job) -> None:
        self._job = job
        done: float = job.progress.done
        total: float = job.progress.total
        if _has_steps(job):
            done, total = share(job.progress), 1.0  # one progress bar for all phases
        self._title.setText(title_of(job))
        self._bar.setRange(0, _STEPS if total else 0)
        if total:
            self._bar.setValue(round(_STEPS * min(done / total, 1)))
        self._bar.setVisible(not job.ended)
        self._note.setText(note_of(job))
        paused = job.state in {"paused", "failed"}
        self._pause.setVisible(paused or (job.kind.can_pause and not job.ended))
        self._pause.set_icon("play" if paused else "pause")
        self._pause.set_words(self.tr("Resume") if paused else self.tr("Pause"))
        self._finish.setVisible(_is_usable(job))
        self._cancel.setVisible(job.state != "done")
        self._cancel.set_words(self.tr("Remove from this list") if job.ended else self.tr("Cancel"))

    def _on_pause(self) -> None:
        self._jobs.do(self._id, "resume" if self._job.state in {"paused", "failed"} else "pause")


class JobList(QWidget):
    """The unfinished jobs, newest first."""

    def __init__(self, theme: Theme, jobs: Jobs, kinds: frozenset[JobKind] | None = None) -> None:
        super().__init__()
        self._theme, self._jobs, self._kinds = theme, jobs, kinds
        self._cards: dict[str, JobCard] = {}
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setAlignment(Qt.AlignmentFlag.AlignTop)
        jobs.changed.connect(self._on_changed)
        clear(self._column)
        for job in jobs.by_id.values():
            self._on_changed(job)
        self._show_or_hide()

    def is_seen(self, job: Job) -> bool:
        """Return True if the card of a job is visible."""
        card = self._cards.get(job.id)
        return card is not None and not card.visibleRegion().isEmpty()

    def _on_changed(self, job: Job) -> None:
        if self._kinds is not None and job.kind not in self._kinds:
            return
        card = self._cards.get(job.id)
        if job.state in {"done", "cancelled"}:
            if card is not None:
                self._take_out(self._cards.pop(job.id))
        elif card is not None:
            card.show_job(job)
        else:
            new_card = JobCard(self._theme, self._jobs, job)
            self._cards[job.id] = new_card
            self._column.insertWidget(0, new_card)
        self._show_or_hide()

    def _take_out(self, card: JobCard) -> None:
        """Hide a card at once. Its place closes later: a job's end moves nothing under a hand about to click."""
        keeps_place = card.sizePolicy()
        keeps_place.setRetainSizeWhenHidden(True)
        card.setSizePolicy(keeps_place)
        card.hide()
        self._close_place(card, None)

    def _close_place(self, card: JobCard, pointer: QPoint | None) -> None:
        """Remove a hidden card once the pointer is elsewhere, or still where it was (`pointer`) a moment ago."""
        now = QCursor.pos()
        if self.isVisible() and self.window().underMouse() and now != pointer:
            QTimer.singleShot(_STILL_MS, card, lambda: self._close_place(card, now))
            return
        self._column.removeWidget(card)
        card.deleteLater()
        self._show_or_hide()

    def _show_or_hide(self) -> None:
        self.setVisible(self._column.count() > 0)


def title_of(job: Job) -> str:
    """The job's title, with its state if it failed or is paused."""
    words_ = tr(job.kind.title)
    if job.state == "failed":
        words_ = tr("{task}: not done").format(task=words_)
    elif job.state == "paused":
        words_ = tr("{task}: paused").format(task=words_)
    return words_.format(name=job.title or job.id)


def note_of(job: Job) -> str:
    """Progress, or the reason why the job failed or paused."""
    progress, reason = job.progress, failure_of(job)
    if job.state == "failed":
        return reason or tr("It failed.")
    parts: list[str] = []
    if job.state == "paused":
        parts.append(reason.rstrip(".") or tr("Paused"))
    if job.state == "queued":
        parts.append(tr("Waiting for its turn"))
    if _has_steps(job):
        parts += [step_text(progress.phase), f"{formatted.whole(100 * share(progress))} %"]
        if job.state == "paused" and _position(progress.phase) >= _NOT_STORED:
            parts.append(tr("measurements are stored; this step starts again"))
    else:
        parts += [
            job_phase_text(progress.phase),
            amount_of(progress),
            translated(progress.note_detail, progress.note),
        ]
    if job.state == "running":
        if progress.stalled:
            parts.append(tr("no data for a while"))
        elif progress.eta_s:
            parts.append(tr("about {time} left").format(time=formatted.duration(progress.eta_s)))
    if _is_usable(job):
        parts.append(tr("a first version is ready"))
    return " · ".join(part for part in parts if part)


def _is_usable(job: Job) -> bool:
    """Whether the job can be finished with the result that it has so far."""
    return job.state == "running" and bool(job.progress.partial.get("usable"))


def _has_steps(job: Job) -> bool:
    """Whether the progress belongs to a quantization, not to the download before it."""
    is_download = job.progress.phase in _DOWNLOAD
    return job.kind is JobKind.QUANTIZE and job.state in {"running", "paused"} and not is_download


def job_phase_text(phase: str) -> str:
    """The name of a job phase."""
    texts = {
        "planning": tr("Checking the current state"),
        "downloading": tr("Downloading"),
        "verifying": tr("Checking"),
        "copying": tr("Copying"),
        "waiting": tr("Waiting"),
        "deleting": tr("Deleting the old files"),
        "converting": tr("Converting"),
        "fetching": tr("Downloading"),
        "measuring": tr("Measuring"),
        "comparing": tr("Comparing"),
        "tuning": tr("Trying settings"),
        "pricing types": tr("Timing precisions"),
    }
    return texts.get(phase, phase.replace("_", " "))


def amount_of(progress: Progress) -> str:
    """Amount done, total and speed."""
    done, total = progress.done, progress.total
    if not total:
        return ""
    if progress.unit == "%":
        return f"{formatted.whole(100 * done / total)} %"
    if progress.unit != "bytes":
        return tr("{done} of {total} {unit}").format(
            done=formatted.whole(done), total=formatted.whole(total), unit=_unit_text(progress.unit)
        )
    text = tr("{done} of {total}").format(done=formatted.size(done), total=formatted.size(total))
    return f"{text} · {formatted.size(progress.speed)}/s" if progress.speed else text


def _unit_text(unit: str) -> str:
    texts = {"settings": tr("settings"), "runs": tr("runs"), "types": tr("precisions")}
    return texts.get(unit, unit)


def tr(text: str) -> str:
    """Translate in this module's context."""
    return QCoreApplication.translate("jobs", text)


# Quantization progress as one bar and six named steps.

# A pause preserves measurements and rounded tensors, but not an unfinished file.
_NOT_STORED = 4
# Phases of quantize.job.execute and of its workers, grouped by step.
_QUANTIZE_STEPS: tuple[tuple[str, frozenset[str]], ...] = (
    ("reading the model", frozenset({"read", "exact", "hash", "convert", "prepare", "first", ""})),
    ("learning how it is used", frozenset({"smooth", "survey", "moments"})),
    ("measuring quality loss", frozenset({"measure", "errors", "alpha"})),
    ("choosing precisions", frozenset({"plan"})),
    ("writing the file", frozenset({"round", "write"})),
    ("checking the result", frozenset({"verify", "gate"})),
)


def step_text(phase: str) -> str:
    """The current step, for example `Step 3 of 6: measuring the loss`."""
    position = _position(phase)
    words = _tr("Step {n} of {total}: {what}")
    return words.format(n=position + 1, total=len(_QUANTIZE_STEPS), what=_tr(_QUANTIZE_STEPS[position][0]))


def share(progress: Progress) -> float:
    """Fraction of the job that is done, 0 to 1. The job weights its phases by expected time."""
    return min(progress.done / progress.total, 1.0) if progress.total else 0.0


def _position(phase: str) -> int:
    return next((n for n, (_, phases) in enumerate(_QUANTIZE_STEPS) if phase in phases), 2)


def _tr(text: str) -> str:
    return QCoreApplication.translate("fit", text)

"""The expected loss of a repository's files and of other uploads of the same model, before a download."""

from PySide6.QtCore import QCoreApplication, Signal
from PySide6.QtWidgets import QCheckBox, QFrame, QHBoxLayout, QLabel, QVBoxLayout

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.jobs import Jobs
from app.gui.reasons import translated
from app.gui.widgets.basics import Banner, button, clear, label, row, set_kind, stack
from app.gui.widgets.flow import Flow
from engine.api.hub import CompareUploadsRequest, Option, RepoPlan, UploadComparison, UploadLoss
from engine.api.jobs import Job, result_of

_OTHERS = 5
_WHOLE = 10  # smaller multiples have a decimal
# Share of the bytes that is read. Source: quantize.measure.row_errors, with headers.
_SHARE = 0.015
_ORIGINALS = frozenset({"F32", "F16", "BF16"})


class CompareUploads(QFrame):
    """Offers the comparison of one repository, and shows the other uploads and the basis of the result.

    The page shows the losses of the repository's own files, where it lists them.
    """

    compared = Signal(object)  # UploadComparison
    pull_pressed = Signal(str, str)

    def __init__(self, services: AppContext, jobs: Jobs, banner: Banner, plan: RepoPlan) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self._services, self._jobs, self._banner = services, jobs, banner
        self._repo = plan.repository.repo
        self._job = ""
        quantized = quantized_options(plan)
        original = max((o.size_bytes for o in plan.options), default=0)
        amount = formatted.size(_SHARE * (original + sum(o.size_bytes for o in quantized)))
        self._note = label(
            _tr(
                "Reads about 1.5 % of each file and of the original, here some {size}, and estimates how far its "
                "answers are from those of the original."
            ).format(size=amount),
            "small",
            wrap=True,
        )
        self.others = QCheckBox(_tr("Also other uploads of this model"))
        self.go = button(_tr("Compare by loss"), self._start)
        self._rows = QVBoxLayout()
        self._rows.setSpacing(4)
        self.setLayout(
            stack(
                label(_tr("Which file loses least?"), "strong"),
                self._note,
                row(self.others, 1, self.go, spacing=16),
                self._rows,
                spacing=8,
                margins=(16, 16, 16, 16),
            )
        )
        jobs.finished.connect(self._on_finished)

    def _start(self) -> None:
        if self._services.settings.now.flag("network.offline"):
            text = _tr("Tessera is set to offline. Change it in Settings to compare files.")
            self._banner.notify(text, "info")
            return
        request = CompareUploadsRequest(uploads=(self._repo,), more=_OTHERS if self.others.isChecked() else 0)

        def started(job: Job) -> None:
            self._job = job.id
            self.go.setEnabled(False)
            self._jobs.started(job, self._on_finished)

        self._services.ask(self._banner, lambda: self._services.api.compare_uploads(request), started)

    def _on_finished(self, job: Job) -> None:
        """Show the result. The page reports a failure, as of every job."""
        if job.id != self._job:
            return
        self._job = ""
        self.go.setEnabled(True)
        comparison = result_of(job, UploadComparison) if job.state == "done" else None
        if comparison is not None:
            self.show_result(comparison)
            self.compared.emit(comparison)

    def show_result(self, comparison: UploadComparison) -> None:
        """List the other uploads with the known facts."""
        clear(self._rows)
        for loss in comparison.uploads:
            if loss.repo != self._repo:
                self._rows.addLayout(self._row(loss, least_loss(comparison)))
        if comparison.tested_by:
            words = _tr("From samples of the weights, and the test of {name} in your library.")
            basis = words.format(name=comparison.tested_by)
        else:
            basis = _tr(
                "From samples of the weights. How sensitive this model is to rounding is not known; that moves all "
                "values by the same factor, so the order is more certain than the values."
            )
        sizes = _tr("Compared with {name}. {read} of {total} were read.").format(
            name=comparison.original,
            read=formatted.size(comparison.fetched_bytes),
            total=formatted.size(comparison.total_bytes),
        )
        self._rows.addWidget(label(f"{basis} {sizes}", "small", wrap=True))

    def _row(self, loss: UploadLoss, least: float) -> QHBoxLayout:
        """A row of another upload's file: name, known facts, loss and download."""
        facts = [formatted.size(loss.size_bytes)]
        if loss.bits_per_weight:
            facts.append(_tr("{n} bits per weight").format(n=formatted.decimal(loss.bits_per_weight, 2)))
        facts.append(loss_text(loss))
        head = Flow(spacing=8)
        head.add(label(loss.name, "strong", wrap=True))
        if chip := multiple_chip(loss, least):
            head.add(chip)
        get = button(_tr("Download"), lambda: self.pull_pressed.emit(loss.repo, loss.label))
        get.setAccessibleName(_tr("Download {name}").format(name=loss.name))
        text = stack(head, label(" · ".join(facts), "small", wrap=True, selectable=True), spacing=2)
        line = row(spacing=16, margins=(0, 6, 0, 6))
        line.addLayout(text, 1)
        line.addWidget(get)
        return line


def quantized_options(plan: RepoPlan) -> list[Option]:
    """The options that can be compared by loss."""
    return [o for o in plan.options if o.choice.format == "gguf" and o.choice.label.upper() not in _ORIGINALS]


def least_loss(comparison: UploadComparison) -> float:
    """The least expected loss above 0 of all compared files, or 0."""
    return min((loss.kld for loss in comparison.uploads if loss.kld), default=0.0)


def multiple_chip(loss: UploadLoss, least: float) -> QLabel | None:
    """The loss as a multiple of the lowest one, the most reliable figure: all files share the model's factor."""
    if not loss.kld or not least:
        return None
    times = loss.kld / least
    words = _tr("{n} times the least loss") if times > 1 else _tr("Least loss")
    chip = label(words.format(n=formatted.decimal(times, 0 if times >= _WHOLE else 1)), "chip")
    set_kind(chip, "chip" if times > 1 else "chip-ok")
    return chip


def loss_text(loss: UploadLoss) -> str:
    """The expected loss with its range, or why there is none."""
    if loss.kld is None:
        return translated(loss.problem_detail, loss.problem)
    values = (formatted.decimal(value, 2 if value >= 1 else 4) for value in (loss.kld, loss.low, loss.high))
    middle, low, high = values
    return _tr("expected loss {n} ({low} to {high})").format(n=middle, low=low, high=high)


def _tr(text: str) -> str:
    return QCoreApplication.translate("CompareUploads", text)

"""Shows the expected loss of a plan, and offers a quick test if it was derived from other models."""

from collections.abc import Callable

from PySide6.QtCore import QCoreApplication, QObject
from PySide6.QtWidgets import QLabel, QPushButton

from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.jobs import Jobs
from app.gui.reasons import failure_of
from app.gui.widgets.basics import Banner, button, label, set_kind
from engine.api.jobs import Job
from engine.api.measuring import QuickTestRequest
from engine.api.quantizing import PlanForecast, QuantPlan

# Quality loss in words. Measured: log-archive.md (bundled model), tensors at 8, 5, 4 and 3 bits.
_LOSS_WORDS = ((0.004, "hardly any", "chip-ok"), (0.02, "small", "chip-ok"), (0.06, "noticeable", "chip-warn"))


def loss_chip(plan: QuantPlan, forecast: PlanForecast, measured: float | None) -> QLabel:
    """The loss in words if this model was measured, else the range in which it is expected."""
    if measured is None and not plan.evidence.sensitivity_sha256:
        # A word such as "hardly any" would claim more than is known.
        low, high = (formatted.decimal(kld, 2 if kld >= 1 else 4) for kld in (forecast.kld_low, forecast.kld_high))
        limits = (formatted.decimal(limit, 3) for limit, _, _ in _LOSS_WORDS)
        scale = _tr("Up to {0} is hardly any loss, up to {1} small, up to {2} noticeable, more is large.")
        words = _tr("Estimated loss of quality: {low} to {high}").format(low=low, high=high)
        return label(words, "chip", tip=scale.format(*limits))
    loss = plan.damage if measured is None else measured
    name, kind = next(((words, kind) for limit, words, kind in _LOSS_WORDS if loss <= limit), ("large", "chip-bad"))
    text = _tr("Loss of quality: {name} ({n})")
    if measured is not None:
        text = _tr("Measured loss of quality: {name} ({n})")
    chip = label(text.format(name=_tr(name), n=formatted.decimal(loss, 4)))
    set_kind(chip, kind)
    return chip


class LossChips(QObject):
    """Makes the chips about loss, and runs the quick test of a model when the user requests it.

    `on_change` is called when a test starts or ends.
    """

    def __init__(
        self, services: AppContext, jobs: Jobs, banner: Banner, on_change: Callable[[], None], parent: QObject
    ) -> None:
        super().__init__(parent)
        self._services, self._jobs, self._banner = services, jobs, banner
        self._on_change = on_change
        self._job = ""
        jobs.finished.connect(self._on_finished)

    def chips(
        self, plan: QuantPlan, forecast: PlanForecast, measured: float | None, model: str, *, is_gguf: bool
    ) -> list[QLabel | QPushButton]:
        """The loss, its basis, and a button for the quick test if only other models are known."""
        shown: list[QLabel | QPushButton] = [loss_chip(plan, forecast, measured)]
        if measured is not None or plan.evidence.sensitivity_sha256:
            return shown
        if plan.evidence.quick_test:
            basis = label(_tr("From a quick test of this model"), "chip")
        else:
            basis = label(_tr("From other models, not from this one"), "chip-warn")
        basis.setToolTip(_tr("Balanced and Best measure this model. The report then has the measured loss."))
        shown.append(basis)
        if is_gguf and not plan.evidence.quick_test:
            test = button(_tr("Test this model"), lambda: self._start(model), "link")
            test.setToolTip(
                _tr("Rounds all weights to 4 bits in memory and compares answers: seconds for a small model.")
            )
            test.setEnabled(not self._job)
            shown.append(test)
        return shown

    def _start(self, model: str) -> None:
        request = QuickTestRequest(model=model)

        def started(job: Job) -> None:
            self._job = job.id
            self._jobs.started(job, self._on_finished)
            if self._job:
                self._on_change()  # the button is disabled while the job runs

        self._services.ask(self._banner, lambda: self._services.api.quick_test(request), started)

    def _on_finished(self, job: Job) -> None:
        if job.id != self._job:
            return
        self._job = ""
        if job.error is not None:
            self._banner.notify(failure_of(job), "bad")
        self._on_change()


def _tr(text: str) -> str:
    return QCoreApplication.translate("LossChips", text)

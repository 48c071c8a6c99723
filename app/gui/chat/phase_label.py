"""A line below a response that shows its phase and the elapsed seconds."""

import time

from PySide6.QtCore import QCoreApplication, QTimer
from PySide6.QtWidgets import QLabel

from app.generation_phase import PERMISSION, WAITING, GenerationPhase, phase_text
from app.gui import formatted
from app.gui.widgets.basics import label

_TICK_MS = 500


class PhaseLabel(QLabel):
    """Shows the seconds since `began` (monotonic clock) while visible."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "small")
        self.setTextFormat(label().textFormat())
        self.phase = WAITING
        self._began = self._asked_at = time.monotonic()
        self._tick = QTimer(self, interval=_TICK_MS)
        self._tick.timeout.connect(self._refresh)

    def begin(self, began: float, phase: GenerationPhase = WAITING) -> None:
        """Show the phase of a response requested at `began`."""
        self._began = began
        self._tick.start()
        self.show()
        self.show_phase(phase)

    def show_phase(self, phase: GenerationPhase) -> None:
        """Show another phase. The time in which the user decides about a permission is not counted."""
        now = time.monotonic()
        if phase == PERMISSION != self.phase:
            self._asked_at = now
        elif self.phase == PERMISSION != phase:
            self._began += now - self._asked_at
        self.phase = phase
        self._refresh()

    def end(self) -> None:
        self._tick.stop()
        self.hide()

    def _refresh(self) -> None:
        seconds = time.monotonic() - self._began
        self.setText(phase_text(self.phase, seconds, _tr, formatted.whole))


def _tr(text: str) -> str:
    return QCoreApplication.translate("phase", text)

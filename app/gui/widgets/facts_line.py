"""Facts on one line: what does not fit is left out whole, and told by the tip and to a screen reader."""

from collections.abc import Sequence

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy

from app.gui.widgets.basics import LabelKind

_BETWEEN, _MORE = " · ", " · …"


class FactsLine(QLabel):
    """The first facts matter most: the last ones go first."""

    def __init__(self, facts: Sequence[str], kind: LabelKind = "small") -> None:
        super().__init__()
        self._facts = list(facts)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setProperty("kind", kind)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(_BETWEEN.join(facts))
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """As many as fit now."""
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        """Letters of another size need another room."""
        super().changeEvent(event)
        if event.type() in {QEvent.Type.FontChange, QEvent.Type.StyleChange}:
            self._fit()

    def _fit(self) -> None:
        whole = _BETWEEN.join(self._facts)
        shown, metrics = whole, self.fontMetrics()
        for count in range(len(self._facts) - 1, 0, -1):
            if metrics.horizontalAdvance(shown) <= self.width():
                break
            shown = _BETWEEN.join(self._facts[:count]) + _MORE
        if shown != self.text():
            self.setText(shown)
        self.setToolTip(whole if shown != whole else "")

"""A name on one line, cut in its middle where it is too long: what tells names apart stands at their ends."""

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QLabel, QStyle

from app.gui.widgets.basics import LabelKind

_FEWEST = 8  # letters of the narrowest


class ElidedLabel(QLabel):
    """Its text stays whole for a screen reader; the tip tells it where it is cut."""

    def __init__(self, text: str = "", kind: LabelKind = "") -> None:
        super().__init__(text)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setProperty("kind", kind)

    def minimumSizeHint(self) -> QSize:
        """A few letters."""
        whole = super().minimumSizeHint()
        return QSize(min(whole.width(), _FEWEST * self.fontMetrics().averageCharWidth()), whole.height())

    def paintEvent(self, event: QPaintEvent) -> None:
        """The text, cut if need be."""
        del event
        shown = self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideMiddle, self.width())
        tip = self.text() if shown != self.text() else ""
        if tip != self.toolTip():
            self.setToolTip(tip)
        painter = QPainter(self)
        painter.setPen(self.palette().color(self.foregroundRole()))
        left = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(self.rect(), QStyle.visualAlignment(self.layoutDirection(), left), shown)

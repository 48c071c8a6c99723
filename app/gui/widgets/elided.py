"""Texts that lose their middle where there is too little space. The tooltip then shows the whole text."""

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QComboBox, QLabel, QStyle, QStyleOptionComboBox, QStylePainter, QToolTip, QWidget

from app.gui.formatted import plain_tip, without_overrides
from app.gui.widgets.basics import LabelKind

_FEWEST = 8  # minimum width in characters
_TEXT_INSET = 1  # pixels between the field of a combo box and its text, in all styles of Qt


def elided(widget: QWidget, text: str, width: int) -> str:
    """The text in the widget's font, without its middle if it is too long."""
    return widget.fontMetrics().elidedText(text, Qt.TextElideMode.ElideMiddle, width)


def shows_whole(widget: QWidget, event: QEvent, text: str, shown: str) -> bool:
    """Show the whole text as the tooltip if less is shown. Returns False if the widget's own tooltip is due."""
    if not isinstance(event, QHelpEvent) or event.type() != QEvent.Type.ToolTip:
        return False
    if widget.toolTip() or text == shown:
        return False
    QToolTip.showText(event.globalPos(), plain_tip(text), widget)
    return True


class ElidedLabel(QLabel):
    """A label that is elided if too long. Screen readers get the full text, and the tooltip shows it."""

    def __init__(self, text: str = "", kind: LabelKind = "") -> None:
        super().__init__(without_overrides(text))
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setProperty("kind", kind)

    @property
    def shown(self) -> str:
        """The text as it is painted."""
        return elided(self, self.text(), self.width())

    def minimumSizeHint(self) -> QSize:
        """Width of a few characters."""
        whole = super().minimumSizeHint()
        return QSize(min(whole.width(), _FEWEST * self.fontMetrics().averageCharWidth()), whole.height())

    def event(self, event: QEvent) -> bool:
        """Show the whole text in the tooltip."""
        return shows_whole(self, event, self.text(), self.shown) or super().event(event)

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setPen(self.palette().color(self.foregroundRole()))
        painter.drawText(self.rect(), QStyle.visualAlignment(self.layoutDirection(), self.alignment()), self.shown)


class ElidedComboBox(QComboBox):
    """A combo box whose chosen entry is elided if too long. The tooltip shows it."""

    @property
    def shown(self) -> str:
        """The text of the chosen entry as it is painted."""
        return self._painted().currentText

    def event(self, event: QEvent) -> bool:
        """Show the whole entry in the tooltip."""
        return shows_whole(self, event, self.currentText(), self.shown) or super().event(event)

    def paintEvent(self, _event: QPaintEvent) -> None:
        option = self._painted()
        painter = QStylePainter(self)
        painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
        painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)

    def _painted(self) -> QStyleOptionComboBox:
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        control, field = QStyle.ComplexControl.CC_ComboBox, QStyle.SubControl.SC_ComboBoxEditField
        room = self.style().subControlRect(control, option, field, self).width() - 2 * _TEXT_INSET
        option.currentText = elided(self, self.currentText(), room)
        return option

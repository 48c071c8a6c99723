"""The editor that takes the place of a message."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QPlainTextEdit, QWidget

from app.gui.theme import Theme
from app.gui.widgets.basics import button, row, stack

_FEWEST_LINES, _MOST_LINES = 3, 14


class _Text(QPlainTextEdit):
    done = Signal()
    left = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Ctrl+Enter is done, Esc leaves all as it was."""
        enter = event.key() in {Qt.Key.Key_Return, Qt.Key.Key_Enter}
        if enter and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self.done.emit()
        elif event.key() == Qt.Key.Key_Escape:
            self.left.emit()
        else:
            super().keyPressEvent(event)


class MessageEditor(QWidget):
    """Text with two buttons. `height_changed`: it grew or shrank with its text."""

    accepted = Signal(str)
    closed = Signal()
    height_changed = Signal()

    def __init__(self, theme: Theme, text: str, name: str, accept: str) -> None:
        super().__init__()
        self._theme = theme
        self._text = _Text(text)
        self._text.setAccessibleName(name)
        self._text.setTabChangesFocus(True)
        self._text.done.connect(self._accept)
        self._text.left.connect(self.closed)
        self._text.document().documentLayout().documentSizeChanged.connect(self._grow)
        send = button(accept, self._accept, "primary")
        send.setToolTip(self.tr("Ctrl+Enter"))
        cancel = button(self.tr("Cancel"), self.closed.emit)
        cancel.setToolTip(self.tr("Esc"))
        self.setLayout(stack(self._text, row(1, cancel, send)))
        self.setFocusProxy(self._text)
        self._grow()

    def _accept(self) -> None:
        text = self._text.toPlainText().strip()
        if text:
            self.accepted.emit(text)

    def _grow(self) -> None:
        lines = min(max(round(self._text.document().size().height()), _FEWEST_LINES), _MOST_LINES)
        height = self._text.fontMetrics().lineSpacing() * lines + 3 * self._theme.tokens.unit
        if height != self._text.height():
            self._text.setFixedHeight(height)
            self.height_changed.emit()

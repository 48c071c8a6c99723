"""The inline editor for a message."""

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QDialog, QFormLayout, QLineEdit, QWidget

from app.gui.theme import Theme
from app.gui.widgets.basics import button, label, row, stack
from app.gui.widgets.growing_text import GrowingText

_FEWEST_LINES, _MOST_LINES = 3, 14


class _Text(GrowingText):
    done = Signal()
    left = Signal()

    def event(self, event: QEvent) -> bool:
        """Take Esc from the window's shortcut, which stops the answer."""
        if (
            event.type() == QEvent.Type.ShortcutOverride
            and isinstance(event, QKeyEvent)
            and event.key() == Qt.Key.Key_Escape
        ):
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Ctrl+Enter accepts, Esc discards the changes."""
        enter = event.key() in {Qt.Key.Key_Return, Qt.Key.Key_Enter}
        if enter and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self.done.emit()
        elif event.key() == Qt.Key.Key_Escape:
            self.left.emit()
        else:
            super().keyPressEvent(event)


class MessageEditor(QWidget):
    """A text editor with two buttons. `height_changed`: its height changed."""

    accepted = Signal(str)
    closed = Signal()
    height_changed = Signal()

    def __init__(self, theme: Theme, text: str, name: str, accept: str) -> None:
        super().__init__()
        self._text = _Text(_FEWEST_LINES, _MOST_LINES, 3 * theme.tokens.unit)
        self._text.setPlainText(text)
        self._text.setAccessibleName(name)
        self._text.setTabChangesFocus(True)
        self._text.done.connect(self._accept)
        self._text.left.connect(self.closed)
        self._text.grew.connect(self.height_changed)
        send = button(accept, self._accept, "primary", tip=self.tr("Ctrl+Enter"))
        cancel = button(self.tr("Cancel"), self.closed.emit, tip=self.tr("Esc"))
        self.setLayout(stack(self._text, row(1, cancel, send)))
        self.setFocusProxy(self._text)

    def _accept(self) -> None:
        text = self._text.toPlainText().strip()
        if text:
            self.accepted.emit(text)


class VariablesDialog(QDialog):
    """A form with one field per name. `accept` is the button's label."""

    def __init__(self, title: str, names: list[str], accept: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._fields = {name: QLineEdit() for name in names}
        form = QFormLayout()
        for name, field in self._fields.items():
            field.setAccessibleName(name)
            field.setMinimumWidth(320)
            form.addRow(label(name), field)
        insert = button(accept, self.accept, "primary")
        insert.setDefault(True)
        buttons = row(1, button(self.tr("Cancel"), self.reject), insert)
        self.setLayout(stack(label(title, "strong"), form, buttons, spacing=12, margins=(24, 24, 24, 24)))

    @property
    def values(self) -> dict[str, str]:
        return {name: field.text() for name, field in self._fields.items()}

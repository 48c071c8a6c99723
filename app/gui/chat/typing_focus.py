"""Where typing goes: to the composer, while nothing else on the page takes text."""

from PySide6.QtCore import QCoreApplication, QEvent, QObject, Qt, QTimer
from PySide6.QtGui import QKeyEvent, QKeySequence
from PySide6.QtWidgets import QApplication, QPlainTextEdit, QWidget

_Held = Qt.KeyboardModifier
_NO_SHORTCUT = (_Held.NoModifier, _Held.ShiftModifier, _Held.KeypadModifier)


class WritingFocus(QObject):
    """Gives `page`'s `editor` the keyboard.

    The button that begins an answer vanishes with what it stood on, and Qt would hand its focus to the next widget
    of the window, where the follow-up question would be typed at nothing.
    """

    def __init__(self, page: QWidget, editor: QPlainTextEdit) -> None:
        super().__init__(page)
        self._page = page
        self._editor = editor
        page.installEventFilter(self)

    def take(self) -> None:
        """An answer begins: the next words are written to the model, unless something else is being written."""
        QTimer.singleShot(0, self, self._take)  # after the button that was pressed is gone

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """A key that nobody on the page wanted is written into the editor."""
        return (isinstance(event, QKeyEvent) and self._take_key(event)) or super().eventFilter(watched, event)

    def _take_key(self, event: QKeyEvent) -> bool:
        if event.type() != QEvent.Type.KeyPress:
            return False
        pasted = event.matches(QKeySequence.StandardKey.Paste)
        typed = event.modifiers() in _NO_SHORTCUT and event.text().isprintable() and event.text().strip() != ""
        if not (pasted or typed) or not self._editor.isEnabled() or self._editor.hasFocus():
            return False
        self._editor.setFocus()
        QCoreApplication.sendEvent(self._editor, event)
        return True

    def _take(self) -> None:
        focus = QApplication.focusWidget()
        writes = focus is not None and focus.testAttribute(Qt.WidgetAttribute.WA_InputMethodEnabled)
        if self._page.isVisible() and self._page.isActiveWindow() and not writes:
            self._editor.setFocus()

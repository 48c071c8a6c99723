"""The column of messages with a button that leads back to its end."""

from collections.abc import Callable

from PySide6.QtCore import QPoint, QRect, QSize
from PySide6.QtGui import QResizeEvent

from app.db.records import Message
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton
from app.gui.widgets.virtual_list import Column, ColumnItem

# Pixels of a message before it is laid out: measured, a line of body text holds about 95 characters.
_LINE_CHARACTERS, _LINE_PIXELS, _MESSAGE_PIXELS = 95, 23, 84


class Transcript(Column):
    """Messages by id."""

    def __init__(self, theme: Theme, make: Callable[[int], ColumnItem], estimate: Callable[[int], int]) -> None:
        super().__init__(make, estimate, width=theme.tokens.column)
        self._to_end = IconButton(theme, "down", self.tr("Go to the end"), self.scroll_to_end)
        self._to_end.setParent(self)
        self._to_end.setProperty("kind", "float")
        self._to_end.hide()
        self.at_end_changed.connect(self._on_at_end)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Keep the floating button in place."""
        super().resizeEvent(event)
        self._scroll_to_end()

    def _on_at_end(self, at_end: bool) -> None:
        self._to_end.setVisible(not at_end)
        self._scroll_to_end()

    def _scroll_to_end(self) -> None:
        side = max(self._to_end.sizeHint().width(), self._to_end.sizeHint().height())
        corner = QPoint(self.rect().center().x() - side // 2, self.rect().bottom() - side - 8)
        self._to_end.setGeometry(QRect(corner, QSize(side, side)))
        self._to_end.raise_()


def estimated_height(message: Message) -> int:
    """Pixels a message will take, before it is laid out."""
    lines = message.content.count("\n") + len(message.content) // _LINE_CHARACTERS + 1
    return _MESSAGE_PIXELS + lines * _LINE_PIXELS

"""A layout that wraps its widgets."""

from PySide6.QtCore import QMargins, QPoint, QRect, QSize, Qt
from PySide6.QtWidgets import QLabel, QLayout, QLayoutItem, QSizePolicy, QWidget

from app.gui.widgets.basics import holding, label, stack


class FlowLayout(QLayout):
    """Places items left to right and wraps them like words, each in the middle of its line's height.

    `centred` centres each line.
    """

    def __init__(self, parent: QWidget | None = None, spacing: int = 8, *, centred: bool = False) -> None:
        super().__init__(parent)
        self._centred = centred
        self._items: list[QLayoutItem] = []
        self._gap = spacing
        self.setContentsMargins(QMargins(0, 0, 0, 0))

    def addItem(self, item: QLayoutItem) -> None:
        self._items.append(item)

    def count(self) -> int:
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:
        """The item, or None past the end."""
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:
        """Remove and return the item, or None past the end."""
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation(0)

    def hasHeightForWidth(self) -> bool:
        """True: a narrower layout is higher."""
        return True

    def heightForWidth(self, width: int) -> int:
        return self._place(QRect(0, 0, width, 0), move=False)

    def setGeometry(self, rect: QRect) -> None:
        super().setGeometry(rect)
        self._place(rect, move=True)

    def sizeHint(self) -> QSize:
        width = sum(item.sizeHint().width() + self._gap for item in self._items) - self._gap
        return QSize(max(width, 0), max((item.sizeHint().height() for item in self._items), default=0))

    def minimumSize(self) -> QSize:
        size = QSize()
        for item in self._items:
            size = size.expandedTo(item.minimumSize())
        return size

    def _place(self, rect: QRect, *, move: bool) -> int:
        y = rect.y()
        for line in self._lines(rect.width()):
            height = max(size.height() for _, size in line)
            used = sum(size.width() for _, size in line) + self._gap * (len(line) - 1)
            x = rect.x() + ((rect.width() - used) // 2 if self._centred else 0)
            for item, size in line if move else ():
                item.setGeometry(QRect(QPoint(x, y + (height - size.height()) // 2), size))
                x += size.width() + self._gap
            y += height + self._gap
        return max(y - self._gap - rect.y(), 0)

    def _lines(self, width: int) -> list[list[tuple[QLayoutItem, QSize]]]:
        """The items and sizes of each line at this width."""
        lines: list[list[tuple[QLayoutItem, QSize]]] = []
        left = -1
        for item in self._items:
            if item.isEmpty():
                continue
            size = _on_one_line(item)
            if size.width() > width:
                wraps = item.hasHeightForWidth()
                size = QSize(width, item.heightForWidth(width) if wraps else size.height())
            if size.width() > left:
                lines.append([])
                left = width
            lines[-1].append((item, size))
            left -= size.width() + self._gap
        return lines


def _on_one_line(item: QLayoutItem) -> QSize:
    """Size of the item on one line. A wrapping label's own hint is narrower than its text."""
    shown = item.widget()
    if not (isinstance(shown, QLabel) and shown.wordWrap()):
        return item.sizeHint()
    sides = shown.contentsMargins()
    width = shown.fontMetrics().size(0, shown.text()).width() + sides.left() + sides.right() + 2 * shown.margin()
    return QSize(width, shown.heightForWidth(width))


class Flow(QWidget):
    """A widget with a flow layout."""

    def __init__(self, spacing: int = 8, *, centred: bool = False) -> None:
        super().__init__()
        self._flow = FlowLayout(self, spacing, centred=centred)
        policy = QSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def add_named(self, words: str, control: QWidget) -> None:
        named_control = holding(stack(label(words, "small"), control, spacing=2))
        self.add(named_control)

    def add(self, widget: QWidget) -> None:
        self._flow.addWidget(widget)

    def clear(self) -> None:
        while (item := self._flow.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.hide()
                widget.deleteLater()

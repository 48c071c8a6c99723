"""A scrolling column of items of different heights. Only visible items exist as widgets."""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QFrame, QWidget

from app.gui.widgets.basics import reserve_scroll_bar

# Time for creating widgets per event loop iteration. The rest follows in the next one.
_BUILD_BUDGET_S = 0.012
_KEEP_SCREENS = 1.0
_NEAR_END = 8  # pixels from the end that still count as the end


class ColumnItem(QWidget):
    """One item of a column."""

    height_changed = Signal()
    unfolding = Signal()  # the user shows or hides a part, which will change the height
    edit_ended = Signal()

    @property
    def is_edited(self) -> bool:
        """Whether it has text of the user that is not saved yet. Such an item stays until the edit ends."""
        return False

    def fit(self, width: int) -> int:
        """Lay out for this width. Returns the required height."""
        raise NotImplementedError


class Column(QAbstractScrollArea):
    """Shows items by key. Follows the end if scrolled there; otherwise the visible text does not move."""

    at_end_changed = Signal(bool)

    def __init__(
        self,
        make: Callable[[int], ColumnItem],
        estimate: Callable[[int], int],
        parent: QWidget | None = None,
        *,
        width: int = 760,
        margin: int = 24,
    ) -> None:
        super().__init__(parent)
        self._make, self._estimate = make, estimate
        self._column, self._margin = width, margin
        self._keys: list[int] = []
        self._index: dict[int, int] = {}
        self._heights: list[int] = []
        self._measured: list[bool] = []
        self._tops: list[int] = [0]
        self._widgets: dict[int, ColumnItem] = {}
        self._outdated: set[int] = set()  # items that are rebuilt once their edit ends
        self._stick = True
        self._arranging = False
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.viewport().setAutoFillBackground(False)
        self._later = QTimer(self, singleShot=True, interval=0)
        self._later.timeout.connect(self._arrange)
        self.verticalScrollBar().setSingleStep(32)
        reserve_scroll_bar(self)

    @property
    def at_end(self) -> bool:
        """Whether the column follows its end."""
        return self._stick

    def set_width_limit(self, width: int) -> None:
        """Set the maximum width of items."""
        self._column = width
        self._measured = [False] * len(self._keys)
        self._later.start()

    def set_keys(self, keys: Sequence[int]) -> None:
        """Show these items, scrolled to the end. An item that is being edited stays."""
        stay = {key for key in keys if key in self._widgets and self._widgets[key].is_edited}
        for key in self._widgets.keys() - stay:
            self._drop(key)
        self._outdated = stay
        self._keys = list(keys)
        self._index = {key: position for position, key in enumerate(self._keys)}
        self._heights = [self._estimate(key) for key in self._keys]
        self._measured = [False] * len(self._keys)
        self._stick = True
        self._arrange()
        self.at_end_changed.emit(True)

    def append(self, key: int) -> None:
        """Add an item at the end."""
        self._index[key] = len(self._keys)
        self._keys.append(key)
        self._heights.append(self._estimate(key))
        self._measured.append(False)
        self._arrange()

    def item(self, key: int) -> ColumnItem | None:
        """The widget of an item, or None if it is not visible."""
        return self._widgets.get(key)

    def items(self) -> list[ColumnItem]:
        return list(self._widgets.values())

    def rebuild(self, key: int, *, ends_edit: bool = False) -> None:
        """Create the item's widget again, once its edit has ended. `ends_edit`: now, without the edited text."""
        widget = self._widgets.get(key)
        if widget is not None and widget.is_edited and not ends_edit:
            self._outdated.add(key)
        elif key in self._index:
            self._drop(key)
            self._measured[self._index[key]] = False
            self._arrange()

    def scroll_to_end(self) -> None:
        self._stick = True
        self._arrange()
        self.at_end_changed.emit(True)

    def scroll_to(self, key: int) -> None:
        """Scroll an item to the top of the view."""
        if key in self._index:
            self._stick = False
            self.verticalScrollBar().setValue(self._tops[self._index[key]])
            self.at_end_changed.emit(False)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Measure the items again if the width changed."""
        if event.size().width() != event.oldSize().width():
            self._measured = [False] * len(self._keys)
        super().resizeEvent(event)
        self._arrange()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        """Update the widgets and `at_end` after the user scrolled."""
        del dx, dy
        if self._arranging:
            return
        bar = self.verticalScrollBar()
        stick = bar.value() >= bar.maximum() - _NEAR_END
        if stick != self._stick:
            self._stick = stick
            self.at_end_changed.emit(stick)
        self._arrange()

    def _width(self) -> int:
        return max(160, min(self._column, self.viewport().width() - 2 * self._margin))

    def _arrange(self) -> None:
        if self._arranging or not self.viewport().width():
            return
        self._arranging = True
        try:
            self._build_in_sight()
        finally:
            self._arranging = False

    def _build_in_sight(self) -> None:
        deadline = time.perf_counter() + _BUILD_BUDGET_S
        anchor, offset = self._anchor()
        unfinished = False
        built: set[int] = set()
        while True:
            self._retop()
            first, last = self._in_sight(anchor, offset)
            todo = [
                position
                for position in (range(last, first - 1, -1) if self._stick else range(first, last + 1))
                if not self._ready(position)
            ]
            if not todo:
                break
            if built and time.perf_counter() > deadline:
                unfinished = True
                break
            self._measure(todo[0])
            built.add(todo[0])
        self._retop()
        self._set_bar(anchor, offset)
        self._place()
        if unfinished:
            self._later.start()

    def _ready(self, position: int) -> bool:
        return self._measured[position] and self._keys[position] in self._widgets

    def _measure(self, position: int) -> None:
        key = self._keys[position]
        widget = self._widgets.get(key)
        if widget is None:
            widget = self._make(key)
            widget.setParent(self.viewport())
            widget.height_changed.connect(lambda: self._on_height_changed(key))
            widget.unfolding.connect(lambda: self._on_unfolding(key))
            widget.edit_ended.connect(lambda: self._on_edit_ended(key))
            self._widgets[key] = widget
        self._heights[position] = widget.fit(self._width())
        self._measured[position] = True

    def _on_height_changed(self, key: int) -> None:
        position = self._index.get(key)
        if position is None or self._arranging:
            return
        self._measured[position] = False
        self._arrange()

    def _on_edit_ended(self, key: int) -> None:
        if key in self._outdated:
            self.rebuild(key)

    def _on_unfolding(self, key: int) -> None:
        """Keep what is above that part in place, also at the end: it holds the button under the pointer.

        The change is laid out once it is whole: halfway, the item may be too low for the place in the text.
        """
        self._stick, self._arranging = False, True
        QTimer.singleShot(0, self, lambda: self._on_unfolded(key))

    def _on_unfolded(self, key: int) -> None:
        self._arranging = False
        self._on_height_changed(key)
        bar = self.verticalScrollBar()
        self._stick = bar.value() >= bar.maximum() - _NEAR_END
        self.at_end_changed.emit(self._stick)

    def _anchor(self) -> tuple[int, int]:
        """Index of the item at the top of the view, and the view's offset below its top."""
        if not self._keys:
            return 0, 0
        value = self.verticalScrollBar().value()
        position = min(max(bisect_right(self._tops, value) - 1, 0), len(self._keys) - 1)
        return position, value - self._tops[position]

    def _retop(self) -> None:
        self._tops = list(accumulate(self._heights, initial=self._margin))

    def _scroll_value(self, anchor: int, offset: int) -> int:
        maximum = max(0, self._tops[-1] + self._margin - self.viewport().height())
        if self._stick:
            return maximum
        return max(0, min(self._tops[anchor] + offset if self._keys else 0, maximum))

    def _in_sight(self, anchor: int, offset: int) -> tuple[int, int]:
        value = self._scroll_value(anchor, offset)
        count = len(self._keys)
        first = max(0, bisect_right(self._tops, value) - 1)
        last = min(count - 1, bisect_right(self._tops, value + self.viewport().height()) - 1)
        return min(first, count), last

    def _set_bar(self, anchor: int, offset: int) -> None:
        bar = self.verticalScrollBar()
        height = self.viewport().height()
        bar.setPageStep(height)
        value = self._scroll_value(anchor, offset)
        bar.setRange(0, max(0, self._tops[-1] + self._margin - height))
        bar.setValue(value)

    def _place(self) -> None:
        value, height = self.verticalScrollBar().value(), self.viewport().height()
        width = self._width()
        left = (self.viewport().width() - width) // 2
        margin = round(height * _KEEP_SCREENS)
        for key in list(self._widgets):
            position = self._index[key]
            top = self._tops[position] - value
            bottom = top + self._heights[position]
            widget = self._widgets[key]
            has_focus = widget.isAncestorOf(self.focusWidget() or self)
            if (bottom < -margin or top > height + margin) and not (has_focus or widget.is_edited):
                self._drop(key)
                continue
            widget.setGeometry(left, top, width, self._heights[position])
            widget.show()

    def _drop(self, key: int) -> None:
        widget = self._widgets.pop(key, None)
        self._outdated.discard(key)
        if widget is not None:
            if (focused := QApplication.focusWidget()) is not None and widget.isAncestorOf(focused):
                self.setFocus()  # otherwise Qt moves the focus to the next widget of the window
            widget.hide()
            widget.deleteLater()

"""A text field that grows with its lines."""

import math

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QPlainTextEdit


class GrowingText(QPlainTextEdit):
    """Grows from `fewest` to `most` lines. The scroll bar appears only beyond them.

    The number of lines decides, not the available space. Otherwise the scroll bar could toggle forever: it takes
    width, so the text wraps differently, fits without it and removes it. Here the bar can only add lines.
    """

    grew = Signal()  # or shrank

    def __init__(self, fewest: int, most: int, around: int) -> None:
        """Create the field. `around`: pixels above and below the lines, including frame and document margins."""
        super().__init__()
        self._fewest, self._most, self._around = fewest, most, around
        self._measuring = False
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self.textChanged.connect(self._fit)  # a fallback font changes line heights without changing their number
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        """Fit again after a text size change."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fit again: the placeholder may take more lines in another width."""
        super().resizeEvent(event)
        if event.oldSize().width() != event.size().width() and self.document().isEmpty():
            self._fit()

    def _fit(self) -> None:
        if self._measuring:
            return
        self._measuring = True  # measuring lays out, which emits documentSizeChanged
        try:
            heights = self._line_heights()
        finally:
            self._measuring = False
        policy = Qt.ScrollBarPolicy
        scrolls = len(heights) > self._most
        self.setVerticalScrollBarPolicy(policy.ScrollBarAlwaysOn if scrolls else policy.ScrollBarAlwaysOff)
        fewest = max(self._fewest, self._placeholder_lines()) if self.document().isEmpty() else self._fewest
        missing = max(fewest - len(heights), 0) * self.fontMetrics().lineSpacing()
        height = math.ceil(sum(heights[: self._most])) + missing + self._around
        if height != self.minimumHeight() or height != self.maximumHeight():
            self.setFixedHeight(height)
            self.grew.emit()

    def _placeholder_lines(self) -> int:
        """Lines that the placeholder takes, which Qt wraps like text."""
        metrics, inside = self.fontMetrics(), self.viewport().rect().adjusted(4, 0, -4, 0)
        if inside.width() < metrics.averageCharWidth():
            return 1  # not laid out yet
        wrapped = metrics.boundingRect(inside, Qt.TextFlag.TextWordWrap, self.placeholderText())
        return max(1, min(self._most, round(wrapped.height() / metrics.lineSpacing())))

    def _line_heights(self) -> list[float]:
        """Heights of the first lines, at most one more than `most`."""
        layout = self.document().documentLayout()
        heights: list[float] = []
        block = self.document().firstBlock()
        while block.isValid() and len(heights) <= self._most:
            layout.blockBoundingRect(block)  # forces the layout
            lines = block.layout()
            heights += [lines.lineAt(number).height() for number in range(min(lines.lineCount(), self._most + 1))]
            block = block.next()
        return heights

"""A text field that is as high as its lines."""

import math

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtWidgets import QPlainTextEdit


class GrowingText(QPlainTextEdit):
    """Grows and shrinks from `fewest` to `most` lines, and has a scroll bar only beyond them.

    A bar that comes when the text does not fit takes width, so the text wraps otherwise and fits again: the bar
    would come and go for ever. Here the number of lines decides, and the bar can only make more of them.
    """

    grew = Signal()  # or shrank

    def __init__(self, fewest: int, most: int, around: int) -> None:
        """`around`: pixels above and below the lines, frame and document margins included."""
        super().__init__()
        self._fewest, self._most, self._around = fewest, most, around
        self._measuring = False
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self.textChanged.connect(self._fit)  # letters of another font are higher, in as many lines
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        """Follow the text size."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self._fit()

    def _fit(self) -> None:
        if self._measuring:
            return
        self._measuring = True  # measuring lays out, which says that the size changed
        try:
            heights = self._line_heights()
        finally:
            self._measuring = False
        policy = Qt.ScrollBarPolicy
        scrolls = len(heights) > self._most
        self.setVerticalScrollBarPolicy(policy.ScrollBarAlwaysOn if scrolls else policy.ScrollBarAlwaysOff)
        missing = max(self._fewest - len(heights), 0) * self.fontMetrics().lineSpacing()
        height = math.ceil(sum(heights[: self._most])) + missing + self._around
        if height != self.minimumHeight() or height != self.maximumHeight():
            self.setFixedHeight(height)
            self.grew.emit()

    def _line_heights(self) -> list[float]:
        """Heights of the first lines: one more than are shown at once, if there are so many."""
        layout = self.document().documentLayout()
        found: list[float] = []
        block = self.document().firstBlock()
        while block.isValid() and len(found) <= self._most:
            layout.blockBoundingRect(block)  # lays it out
            lines = block.layout()
            found += [lines.lineAt(number).height() for number in range(min(lines.lineCount(), self._most + 1))]
            block = block.next()
        return found

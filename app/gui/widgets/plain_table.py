"""A read-only table without grid or selection, as high as its rows."""

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHeaderView, QSizePolicy, QTableWidget, QTableWidgetItem

from app.gui.formatted import plain_tip
from app.gui.theme import Theme

_NARROWEST = 48


class PlainTable(QTableWidget):
    """Text left, numbers right. Column `wide` takes the remaining width.

    Where it would be cut, the `spare` columns are hidden, in their order; the tooltip of the first cell has them.
    """

    def __init__(
        self,
        theme: Theme,
        name: str,
        columns: Sequence[str],
        *,
        numbers: int,
        rows: int = 8,
        wide: int = 0,
        spare: Sequence[int] = (),
    ) -> None:
        super().__init__(0, len(columns))
        self._theme, self._most, self._numbers, self._spare = theme, rows, numbers, spare
        self._columns = list(columns)
        self.setAccessibleName(name)
        self.setHorizontalHeaderLabels(list(columns))
        self.verticalHeader().hide()
        header = self.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(wide, QHeaderView.ResizeMode.Stretch)
        header.setHighlightSections(False)
        header.setMinimumSectionSize(_NARROWEST)
        header.setSectionsClickable(False)
        for column in range(len(columns)):
            item = self.horizontalHeaderItem(column)
            assert item is not None
            item.setTextAlignment(self._alignment(column))
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)  # names differ at their ends
        self.setShowGrid(False)
        self.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
        self.setSelectionMode(QTableWidget.SelectionMode.NoSelection)
        self.setVerticalScrollMode(QTableWidget.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollMode(QTableWidget.ScrollMode.ScrollPerPixel)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setTabKeyNavigation(False)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._fit()
        theme.changed.connect(self._fit)

    def show_rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Show these cells. Unchanged cells are not touched, which avoids flicker."""
        if list(map(list, rows)) == self.texts():
            return
        if self.rowCount() != len(rows):
            self.setRowCount(len(rows))
        for number, cells in enumerate(rows):
            for column, text in enumerate(cells):
                item = self.item(number, column)
                if item is None:
                    item = QTableWidgetItem(text)
                    item.setTextAlignment(self._alignment(column))
                    item.setToolTip(plain_tip(text))
                    self.setItem(number, column, item)
                elif item.text() != text:
                    item.setText(text)
                    item.setToolTip(plain_tip(text))
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Show as many columns as fit."""
        super().resizeEvent(event)
        self._fit_columns()

    def _fit_columns(self) -> None:
        if not self._spare:
            return
        self.setUpdatesEnabled(False)
        for column in self._spare:  # a hidden column has no width
            self.setColumnHidden(column, False)
        header = self.horizontalHeader()
        widths = [max(self.sizeHintForColumn(n), header.sectionSizeHint(n)) for n in range(self.columnCount())]
        excess = sum(widths) - self.viewport().width()
        for column in self._spare:
            self.setColumnHidden(column, excess > 0)
            excess -= widths[column]
        self.setUpdatesEnabled(True)
        hidden = [column for column in self._spare if self.isColumnHidden(column)]
        for row, cells in enumerate(self.texts()):
            first = self.item(row, 0)
            if first is not None:
                lines = [cells[0], *(f"{self._columns[n]}: {cells[n]}" for n in hidden)]
                first.setToolTip(plain_tip("\n".join(lines)))

    def texts(self) -> list[list[str]]:
        """The visible cells."""
        return [
            [item.text() if (item := self.item(row, column)) else "" for column in range(self.columnCount())]
            for row in range(self.rowCount())
        ]

    def _alignment(self, column: int) -> Qt.AlignmentFlag:
        is_number = column >= self.columnCount() - self._numbers
        side = Qt.AlignmentFlag.AlignRight if is_number else Qt.AlignmentFlag.AlignLeft
        return side | Qt.AlignmentFlag.AlignVCenter

    def _fit(self) -> None:
        tokens = self._theme.tokens
        self.setFont(self._theme.font("small"))
        line = self.fontMetrics().height() + tokens.unit
        self.verticalHeader().setDefaultSectionSize(line)
        shown = min(max(self.rowCount(), 1), self._most)
        self.setFixedHeight(self.horizontalHeader().sizeHint().height() + shown * line + 2 * self.frameWidth() + 2)
        self._fit_columns()

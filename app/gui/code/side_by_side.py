"""Two versions of a file side by side: aligned, coloured, scrolling together."""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from PySide6.QtCore import Qt
from PySide6.QtGui import QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QHBoxLayout, QPlainTextEdit, QTextEdit, QWidget

from app.code.diff_rows import Row, Side, aligned_rows
from app.gui.code.coloured import Coloured, coloured_lines, language_of, write_line
from app.gui.theme import Theme

_WORDS = re.compile(r"\w+|\s+|.")
_ALIKE = 0.4  # minimum similarity of two lines for word-level highlighting
_AFTER_NUMBER = 2  # spaces after a line number, see `write_line`


@dataclass(frozen=True)
class DiffRow:
    """A diff row. A side is None if it has no line; both are None for omitted lines."""

    left: Coloured | None
    right: Coloured | None
    left_number: int
    right_number: int
    changed: bool
    left_words: tuple[tuple[int, int], ...] = ()  # changed spans within the line: offset, length
    right_words: tuple[tuple[int, int], ...] = ()


def changed_words(left: str, right: str) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """The changed word spans of two versions of a line. Empty if the lines have little in common."""
    old, new = _WORDS.findall(left), _WORDS.findall(right)
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < _ALIKE:
        return (), ()
    found: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        if kind == "equal":
            continue
        for side, (words, first, last) in enumerate(((old, a0, a1), (new, b0, b1))):
            if last > first:
                found[side].append((sum(map(len, words[:first])), sum(map(len, words[first:last]))))
    return tuple(found[0]), tuple(found[1])


def diff_rows(path: str, before: str, after: str) -> list[DiffRow]:
    """Align and colour two texts. Pure, for a worker thread."""
    language = language_of(path)
    old, new = coloured_lines(before, language), coloured_lines(after, language)

    def shown(side: Side | None, lines: list[Coloured]) -> Coloured | None:
        if side is None:
            return None
        return lines[side.number - 1] if side.number <= len(lines) else ((side.text, None),)

    def row_of(row: Row | None) -> DiffRow:
        if row is None:
            return DiffRow(None, None, 0, 0, changed=False)
        both = row.changed and row.left is not None and row.right is not None
        words = changed_words(row.left.text, row.right.text) if both and row.left and row.right else ((), ())
        return DiffRow(
            shown(row.left, old),
            shown(row.right, new),
            row.left.number if row.left else 0,
            row.right.number if row.right else 0,
            row.changed,
            *words,
        )

    return [row_of(row) for row in aligned_rows(before, after)]


class SideBySide(QWidget):
    """The diff widget. `show_rows` replaces its content."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._rows: list[DiffRow] = []
        self._indent = 0
        self.left = self._pane(self.tr("Before"))
        self.right = self._pane(self.tr("After"))
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(8)
        layout.addWidget(self.left)
        layout.addWidget(self.right)
        for one, other in ((self.left, self.right), (self.right, self.left)):
            one.verticalScrollBar().valueChanged.connect(other.verticalScrollBar().setValue)
            one.horizontalScrollBar().valueChanged.connect(other.horizontalScrollBar().setValue)
        theme.changed.connect(self._redraw)

    def _pane(self, name: str) -> QPlainTextEdit:
        pane = QPlainTextEdit()
        pane.setReadOnly(True)
        pane.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        pane.setAccessibleName(name)
        self._theme.dress(pane, "mono")
        pane.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        return pane

    def show_rows(self, rows: list[DiffRow]) -> None:
        """Show these rows."""
        self._rows = rows
        self._redraw()

    def _redraw(self) -> None:
        width = len(str(max((max(r.left_number, r.right_number) for r in self._rows), default=0)))
        self._indent = width + _AFTER_NUMBER
        for pane, left in ((self.left, True), (self.right, False)):
            pane.clear()
            cursor = QTextCursor(pane.document())
            cursor.beginEditBlock()
            for position, row in enumerate(self._rows):
                if position:
                    cursor.insertBlock(QTextBlockFormat())
                side, number = (row.left, row.left_number) if left else (row.right, row.right_number)
                self._write_line(cursor, row, side, number, width)
            cursor.endEditBlock()
            pane.setExtraSelections(self._backgrounds(pane, left=left))
            pane.moveCursor(QTextCursor.MoveOperation.Start)

    def _write_line(
        self, cursor: QTextCursor, row: DiffRow, side: Coloured | None, number: int, width: int
    ) -> None:
        if row.left is None and row.right is None:
            muted = QTextCharFormat()
            muted.setForeground(self._theme.tokens.colour("muted"))
            cursor.insertText("⋯", muted)
            return
        if side is None:
            return
        write_line(cursor, self._theme, f"{number:>{width}}", side)

    def _backgrounds(self, pane: QPlainTextEdit, *, left: bool) -> list[QTextEdit.ExtraSelection]:
        """Backgrounds of changed lines. Lines without a counterpart are hatched grey."""
        found = []
        for position, row in enumerate(self._rows):
            if not row.changed:
                continue
            side = row.left if left else row.right
            colour = self._theme.tokens.colour("hover" if side is None else "bad" if left else "ok")
            if side is not None:
                colour.setAlpha(48)
            selection = QTextEdit.ExtraSelection()
            selection.cursor = QTextCursor(pane.document().findBlockByNumber(position))
            selection.format.setBackground(colour)
            selection.format.setProperty(QTextCharFormat.Property.FullWidthSelection, True)
            found.append(selection)
            for start, length in row.left_words if left else row.right_words:
                found.append(self._word(pane, position, start, length, left=left))
        return found

    def _word(
        self, pane: QPlainTextEdit, line: int, start: int, length: int, *, left: bool
    ) -> QTextEdit.ExtraSelection:
        """Highlight a changed span within its line."""
        colour = self._theme.tokens.colour("bad" if left else "ok")
        colour.setAlpha(96)
        cursor = QTextCursor(pane.document().findBlockByNumber(line))
        cursor.movePosition(QTextCursor.MoveOperation.Right, QTextCursor.MoveMode.MoveAnchor, self._indent + start)
        cursor.movePosition(QTextCursor.MoveOperation.Right, QTextCursor.MoveMode.KeepAnchor, length)
        selection = QTextEdit.ExtraSelection()
        selection.cursor = cursor
        selection.format.setBackground(colour)
        return selection

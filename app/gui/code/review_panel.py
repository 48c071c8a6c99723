"""Reviews proposed edits: a list with check boxes, and both versions of the file side by side."""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import (
    QHBoxLayout,
    QListWidget,
    QListWidgetItem,
    QPlainTextEdit,
    QSplitter,
    QTextEdit,
    QWidget,
)

from app.code.diff_rows import Row, Side, aligned_rows, file_change, text_with
from app.code.edits.reviews import NO_EDITS
from app.code.edits.session import FileProposal, Proposal
from app.code.edits.types import Applied, Hunk, Refused
from app.gui.app_context import AppContext
from app.gui.code.coloured import Coloured, coloured_lines, language_of, write_line
from app.gui.formatted import plain_tip
from app.gui.reasons import known_text
from app.gui.theme import Theme
from app.gui.widgets.basics import button, label, row, stack
from app.gui.widgets.flow import Flow

_ID = Qt.ItemDataRole.UserRole


class ReviewPanel(QWidget):
    """Shows a proposal. Files are written only when the user presses Apply."""

    apply_pressed = Signal(object, list)  # the proposal, and the ids of its checked edits
    undo_pressed = Signal()
    shown_in_file = Signal(str)

    def __init__(self, services: AppContext) -> None:
        super().__init__()
        self._services = services
        self._files: dict[int, FileProposal] = {}
        self.proposal = NO_EDITS  # the proposal shown; edit ids refer to it
        self.hunks = QListWidget()
        self.hunks.setAccessibleName(self.tr("Edits"))
        self.hunks.currentItemChanged.connect(lambda *_: self._show_current())
        self.hunks.itemChanged.connect(lambda _: self._count())
        self.diff = SideBySide(services.theme)
        self.heading = label(self.tr("No edits yet"), "strong")
        self.apply = button(self.tr("Apply"), self._apply, "primary")
        self.apply.setEnabled(False)
        self.undo = button(self.tr("Undo"), self.undo_pressed.emit)
        self.undo.setEnabled(False)
        split = QSplitter(Qt.Orientation.Vertical, handleWidth=1)
        split.addWidget(self.hunks)
        split.addWidget(self.diff)
        split.setStretchFactor(1, 3)
        self.in_file = button(self.tr("Show in the file"), self._show_in_file)
        self.in_file.setEnabled(False)
        actions = Flow()
        for control in (self.in_file, self.undo, self.apply):
            actions.add(control)
        self.heading.setWordWrap(True)
        column = stack(row(self.heading, actions, grow=0), margins=(8, 8, 8, 8))
        column.addWidget(split, 1)
        self.setLayout(column)

    @property
    def chosen(self) -> list[int]:
        """Ids of the checked edits."""
        items = (self.hunks.item(number) for number in range(self.hunks.count()))
        return [
            item.data(_ID) for item in items if item.checkState() == Qt.CheckState.Checked and item.data(_ID) >= 0
        ]

    def show_proposal(self, proposal: Proposal) -> None:
        """Show a proposal. The edits of a file are checked if all of them can be applied."""
        self._show(proposal, frozenset())

    def show_remaining(self, proposal: Proposal) -> None:
        """Show the remaining proposal. Edits that the user did not choose stay unchosen; the current one stays."""
        place, items = self.hunks.currentRow(), self._items()
        current = self._hunk_of(items[place]) if place >= 0 else None
        unchecked = {
            self._files[item.data(_ID)].outcome(item.data(_ID)).hunk
            for item in items
            if item.data(_ID) >= 0 and item.checkState() == Qt.CheckState.Unchecked
        }
        self._show(proposal, frozenset(unchecked))
        hunks = [self._hunk_of(item) for item in self._items()]
        if current in hunks:
            self.hunks.setCurrentRow(hunks.index(current))
        elif 0 <= place < len(hunks):  # it was decided: the next one
            self.hunks.setCurrentRow(place)

    def _items(self) -> list[QListWidgetItem]:
        return [self.hunks.item(number) for number in range(self.hunks.count())]

    def _show(self, proposal: Proposal, unchecked: frozenset[Hunk]) -> None:
        self.hunks.clear()
        self.proposal = proposal
        self._files = {hunk_id: file for file in proposal.files for hunk_id in file.hunk_ids}
        for hunk_id, file in sorted(self._files.items()):
            outcome = file.outcome(hunk_id)
            applied = outcome if isinstance(outcome, Applied) else outcome.offer
            if applied is not None:
                note = (
                    ""
                    if applied.match == "exact"
                    else self.tr(" (differs in %1)").replace("%1", known_text(applied.match))
                )
                one = applied.last <= applied.first
                lines = self.tr("line {first}") if one else self.tr("lines {first} to {last}")
                lines = lines.format(first=applied.first, last=applied.last)
                item = self._item(f"{file.path}{file_change(applied.hunk)} · {lines}{note}", hunk_id)
                item.setFlags(item.flags() | Qt.ItemFlag.ItemIsUserCheckable)
                is_chosen = hunk_id in proposal.applicable and outcome.hunk not in unchecked
                item.setCheckState(Qt.CheckState.Checked if is_chosen else Qt.CheckState.Unchecked)
            elif isinstance(outcome, Refused):
                self._item(f"{file.path}: {self.tr('refused')}: {known_text(outcome.reason)}", -1)
        for malformed in proposal.malformed:
            self._item(f"{malformed.path or self.tr('an edit')}: {known_text(malformed.reason)}", -1)
        self._count()
        if self.hunks.count():
            self.hunks.setCurrentRow(0)
        else:
            self.diff.show_rows([])

    def _hunk_of(self, item: QListWidgetItem) -> Hunk | None:
        """The edit of a line; None for one that is refused or malformed."""
        file = self._files.get(item.data(_ID))
        return file.outcome(item.data(_ID)).hunk if file is not None else None

    def clear(self) -> None:
        self.show_proposal(NO_EDITS)

    def _item(self, text: str, hunk_id: int) -> QListWidgetItem:
        shown = "".join(char if char.isprintable() else "�" for char in text)
        item = QListWidgetItem(shown, self.hunks)
        item.setToolTip(plain_tip(shown))
        item.setData(_ID, hunk_id)
        if hunk_id < 0:
            item.setFlags(Qt.ItemFlag.ItemIsEnabled)
        return item

    def _apply(self) -> None:
        self.apply_pressed.emit(self.proposal, self.chosen)

    def _show_in_file(self) -> None:
        item = self.hunks.currentItem()
        file = self._files.get(item.data(_ID)) if item is not None else None
        if file is not None:
            self.shown_in_file.emit(file.path)

    def _count(self) -> None:
        total, chosen = len(self._files), len(self.chosen)
        words = self.tr("%1 of %2 edits chosen").replace("%1", str(chosen)).replace("%2", str(total))
        self.heading.setText(words if self.hunks.count() else self.tr("No edits yet"))
        self.apply.setEnabled(chosen > 0)

    def _show_current(self) -> None:
        item = self.hunks.currentItem()
        file = self._files.get(item.data(_ID)) if item is not None else None
        self.in_file.setEnabled(file is not None)
        if file is None:
            self.diff.show_rows([])
            return
        hunk_id = item.data(_ID)

        def work() -> list[DiffRow]:
            before, after = text_with(file, (hunk_id,))
            return diff_rows(file.path, before, after)

        def show(rows: list[DiffRow]) -> None:
            current = self.hunks.currentItem()
            if current is not None and current.data(_ID) == hunk_id:
                self.diff.show_rows(rows)

        self._services.background.run(work, show, parent=self, newest="diff")


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
    spans: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        if kind == "equal":
            continue
        for side, (words, first, last) in enumerate(((old, a0, a1), (new, b0, b1))):
            if last > first:
                spans[side].append((sum(map(len, words[:first])), sum(map(len, words[first:last]))))
    return tuple(spans[0]), tuple(spans[1])


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
        pane = QPlainTextEdit(readOnly=True, lineWrapMode=QPlainTextEdit.LineWrapMode.NoWrap)
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
            for position, shown in enumerate(self._rows):
                if position:
                    cursor.insertBlock(QTextBlockFormat())
                side, number = (shown.left, shown.left_number) if left else (shown.right, shown.right_number)
                self._write_line(cursor, shown, side, number, width)
            cursor.endEditBlock()
            pane.setExtraSelections(self._backgrounds(pane, left=left))
            pane.moveCursor(QTextCursor.MoveOperation.Start)

    def _write_line(
        self, cursor: QTextCursor, shown: DiffRow, side: Coloured | None, number: int, width: int
    ) -> None:
        if shown.left is None and shown.right is None:
            muted = QTextCharFormat()
            muted.setForeground(self._theme.tokens.colour("muted"))
            cursor.insertText("⋯", muted)
            return
        if side is None:
            return
        write_line(cursor, self._theme, f"{number:>{width}}", side)

    def _backgrounds(self, pane: QPlainTextEdit, *, left: bool) -> list[QTextEdit.ExtraSelection]:
        """Backgrounds of changed lines. Lines without a counterpart are hatched grey."""
        selections = []
        for position, shown in enumerate(self._rows):
            if not shown.changed:
                continue
            side = shown.left if left else shown.right
            colour = self._theme.tokens.colour("hover" if side is None else "bad" if left else "ok")
            if side is not None:
                colour.setAlpha(48)
            selection = QTextEdit.ExtraSelection()
            selection.cursor = QTextCursor(pane.document().findBlockByNumber(position))
            selection.format.setBackground(colour)
            selection.format.setProperty(QTextCharFormat.Property.FullWidthSelection, True)
            selections.append(selection)
            for start, length in shown.left_words if left else shown.right_words:
                selections.append(self._word(pane, position, start, length, left=left))
        return selections

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

"""The read-only view of a file. Pending edits are shown within it, each with buttons to accept or reject it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Literal

from PySide6.QtCore import QRect, Qt, Signal, SignalInstance
from PySide6.QtGui import QKeySequence, QResizeEvent, QShortcut, QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QPushButton, QTextEdit

from app.code.edits.reviews import InlineHunk
from app.gui.code.coloured import Coloured, coloured_lines, language_of, write_line
from app.gui.shortcuts import native_keys
from app.gui.theme import Theme
from app.gui.widgets.basics import button, row

NEXT, PREVIOUS, ACCEPT, REJECT = "F7", "Shift+F7", "Ctrl+Return", "Ctrl+Backspace"
_MARGIN = 8  # pixels between the buttons of an edit and the right side
_TINT = 48  # opacity, of 255


@dataclass(frozen=True)
class SourceLine:
    """A line of the view. `number` is its line in the file, 0 if the file does not have it.

    An "old" line is to be removed or was removed, a "new" one is to be added or was added; `hunk` is the index of
    its edit, else -1. A "head" is the empty line above an edit, which has its buttons.
    """

    kind: Literal["same", "old", "new", "head"]
    number: int
    coloured: Coloured
    hunk: int = -1


@dataclass(frozen=True)
class SourceText:
    """A file to show: its plain lines, its pending edits, and the lines of the view."""

    path: str
    lines: tuple[str, ...]
    hunks: tuple[InlineHunk, ...]
    shown: tuple[SourceLine, ...]


def source_text(path: str, text: str, hunks: Sequence[InlineHunk] = ()) -> SourceText:
    """The view of a file with its pending edits. Pure, for a worker thread."""
    language = language_of(path)
    lines, coloured = text.split("\n"), coloured_lines(text, language)
    parts = sorted((region.first, place, region) for place, hunk in enumerate(hunks) for region in hunk.regions)
    shown: list[SourceLine] = []
    done = 0

    def through(last: int) -> None:
        shown.extend(SourceLine("same", number + 1, coloured[number]) for number in range(done, last))

    for first, place, region in parts:
        if first - 1 < done:
            continue
        through(first - 1)
        here = [(number + 1, coloured[number]) for number in range(first - 1, region.last)]
        there = [(0, line) for line in coloured_lines("\n".join(region.other), language)] if region.other else []
        old, new = (there, here) if hunks[place].is_written else (here, there)
        if region == hunks[place].regions[0]:
            shown.append(SourceLine("head", 0, (), place))
        shown += [SourceLine("old", number, line, place) for number, line in old]
        shown += [SourceLine("new", number, line, place) for number, line in new]
        done = region.last
    through(len(lines))
    return SourceText(path, tuple(lines), tuple(hunks), tuple(shown))


@dataclass(frozen=True)
class Selected:
    """Whole lines `first`..`last` (1-based) of a file."""

    path: str
    first: int
    last: int
    text: str


class SourceView(QPlainTextEdit):
    """Shows a `SourceText`, read-only. `accepted` and `rejected` carry edits of the file."""

    accepted = Signal(list)
    rejected = Signal(list)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._source: SourceText | None = None
        self._bars: list[QFrame] = []
        self.setReadOnly(True)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setAccessibleName(self.tr("File"))
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        for keys, run in (
            (NEXT, lambda: self.step(1)),
            (PREVIOUS, lambda: self.step(-1)),
            (ACCEPT, lambda: self._decide_current(self.accepted)),
            (REJECT, lambda: self._decide_current(self.rejected)),
        ):
            shortcut = QShortcut(QKeySequence(keys), self, context=Qt.ShortcutContext.WidgetShortcut)
            shortcut.activated.connect(run)
        self.updateRequest.connect(self._place_bars)
        theme.changed.connect(self._redraw)
        self._redraw()

    @property
    def path(self) -> str | None:
        """Path of the visible file, or None."""
        return self._source.path if self._source else None

    @property
    def hunks(self) -> tuple[InlineHunk, ...]:
        """The pending edits of the visible file."""
        return self._source.hunks if self._source else ()

    @property
    def line(self) -> int:
        """The line of the file at the cursor, 1 if there is none."""
        place = self.textCursor().blockNumber()
        shown = self._source.shown[: place + 1] if self._source else ()
        return next((line.number for line in reversed(shown) if line.number), 1)

    def show_source(self, source: SourceText | None) -> None:
        """Show another file, or none. A file that is shown again stays where it was scrolled to."""
        if source == self._source:
            return
        is_same = source is not None and source.path == self.path
        place, scrolled = self.textCursor().blockNumber(), self.verticalScrollBar().value()
        self._source = source
        self._redraw()
        if is_same:
            self.setTextCursor(QTextCursor(self.document().findBlockByNumber(min(place, self.blockCount() - 1))))
            self.verticalScrollBar().setValue(scrolled)
        elif self.hunks:
            self._go_to(self._first_lines()[0])

    def selected(self) -> Selected | None:
        """The lines of the file that the selection touches, or None without a selection."""
        cursor = self.textCursor()
        if self._source is None or not cursor.hasSelection():
            return None
        document = self.document()
        first = document.findBlock(cursor.selectionStart()).blockNumber()
        end = document.findBlock(cursor.selectionEnd())
        last = end.blockNumber() - (cursor.selectionEnd() == end.position() and end.blockNumber() > first)
        numbers = [line.number for line in self._source.shown[first : last + 1] if line.number]
        if not numbers:
            return None
        text = "\n".join(self._source.lines[numbers[0] - 1 : numbers[-1]])
        return Selected(self._source.path, numbers[0], numbers[-1], text)

    def step(self, direction: int) -> None:
        """Move the cursor to the next (1) or previous (-1) edit; wrap around at the end."""
        firsts = self._first_lines()
        if not firsts:
            return
        now = self.textCursor().blockNumber()
        if direction > 0:
            at = next((first for first in firsts if first > now), firsts[0])
        else:
            at = next((first for first in reversed(firsts) if first < now), firsts[-1])
        self._go_to(at)

    def _go_to(self, place: int) -> None:
        self.setTextCursor(QTextCursor(self.document().findBlockByNumber(place)))
        self.centerCursor()

    def _first_lines(self) -> list[int]:
        """The first line of each edit in the view."""
        shown = self._source.shown if self._source else ()
        firsts: dict[int, int] = {}
        for place, line in enumerate(shown):
            if line.hunk >= 0:
                firsts.setdefault(line.hunk, place)
        return sorted(firsts.values())

    def _current(self) -> InlineHunk | None:
        """The edit at the cursor, else the next one, else the last one."""
        if self._source is None or not self._source.hunks:
            return None
        place = self.textCursor().blockNumber()
        after = (line.hunk for line in self._source.shown[place:] if line.hunk >= 0)
        before = (line.hunk for line in reversed(self._source.shown[:place]) if line.hunk >= 0)
        return self._source.hunks[next(after, next(before, 0))]

    def _decide_current(self, decided: SignalInstance) -> None:
        hunk = self._current()
        if hunk is not None:
            decided.emit([hunk])

    def _redraw(self) -> None:
        self.setFont(self._theme.font("mono", mono=True))
        if any(bar.isAncestorOf(self.focusWidget() or self) for bar in self._bars):
            self.setFocus()
        for bar in self._bars:
            bar.hide()
            bar.deleteLater()
        self._bars = []
        self.clear()
        self.setExtraSelections([])
        if self._source is None:
            return
        width = len(str(len(self._source.lines)))
        marks = (
            {"same": " ", "old": "-", "new": "+"}
            if self._source.hunks
            else dict.fromkeys(("same", "old", "new"), "")
        )
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        self._bars = [self._bar(place, hunk) for place, hunk in enumerate(self._source.hunks)]
        for place, line in enumerate(self._source.shown):
            if place:
                cursor.insertBlock(QTextBlockFormat(), QTextCharFormat())
            if line.kind == "head":
                cursor.setBlockCharFormat(self._head_format(self._bars[line.hunk].sizeHint().height()))
            else:
                write_line(cursor, self._theme, f"{line.number or '':>{width}}{marks[line.kind]}", line.coloured)
        cursor.endEditBlock()
        self.setExtraSelections(self._backgrounds())
        self.moveCursor(QTextCursor.MoveOperation.Start)
        self._place_bars()

    def _head_format(self, height: int) -> QTextCharFormat:
        """A format whose lines are this high, in pixels: the view has no other way to leave space above a line."""
        font = self.font()
        font.setPixelSize(ceil(font.pixelSize() * height / self.fontMetrics().height()))
        result = QTextCharFormat()
        result.setFont(font)
        return result

    def _backgrounds(self) -> list[QTextEdit.ExtraSelection]:
        selections = []
        for place, line in enumerate(self._source.shown if self._source else ()):
            if line.kind in {"old", "new"}:
                colour = self._theme.tokens.colour("bad" if line.kind == "old" else "ok")
                colour.setAlpha(_TINT)
                selection = QTextEdit.ExtraSelection()
                selection.cursor = QTextCursor(self.document().findBlockByNumber(place))
                selection.format.setBackground(colour)
                selection.format.setProperty(QTextCharFormat.Property.FullWidthSelection, True)
                selections.append(selection)
        return selections

    def _bar(self, place: int, hunk: InlineHunk) -> QFrame:
        bar = QFrame(self.viewport())
        bar.setProperty("kind", "card")
        bar.setCursor(Qt.CursorShape.ArrowCursor)
        names = {"n": place + 1, "total": len(self.hunks)}
        accept = self._button(self.tr("Accept"), partial(self.accepted.emit, [hunk]), ACCEPT)
        accept.setAccessibleName(self.tr("Accept {n} of {total}").format(**names))
        reject = self._button(self.tr("Reject"), partial(self.rejected.emit, [hunk]), REJECT)
        reject.setAccessibleName(self.tr("Reject {n} of {total}").format(**names))
        bar.setLayout(row(accept, reject, spacing=4, margins=(4, 2, 4, 2)))
        bar.hide()
        return bar

    def _button(self, words: str, run: Callable[[], object], keys: str) -> QPushButton:
        return button(words, run, "quiet", tip=f"{words} ({native_keys(keys)})")

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Keep the buttons of the edits at the right side."""
        super().resizeEvent(event)
        self._place_bars()

    def _place_bars(self, *_: QRect | int) -> None:
        """Place the buttons of each edit above it, or on its first visible line."""
        if not self._bars or self._source is None:
            return
        spans: dict[int, list[int]] = {}
        for place, line in enumerate(self._source.shown):
            if line.hunk >= 0:
                spans.setdefault(line.hunk, []).append(place)
        view = self.viewport().rect()
        for number, bar in enumerate(self._bars):
            places = spans.get(number)
            if not places:
                bar.hide()
                continue
            first, last = (
                self.blockBoundingGeometry(self.document().findBlockByNumber(place)).translated(
                    self.contentOffset()
                )
                for place in (places[0], places[-1])
            )
            size = bar.sizeHint()
            top = max(round(first.top()), min(0, round(last.bottom()) - size.height()))
            seen = round(first.top()) < view.height() and round(last.bottom()) > 0
            bar.setGeometry(view.width() - size.width() - _MARGIN, top, size.width(), size.height())
            bar.setVisible(seen)

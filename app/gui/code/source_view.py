"""One source file to read and to select in; line numbers are not part of what is selected."""

from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QTextBlockFormat, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit

from app.gui.code.coloured import Coloured, write_line
from app.gui.theme import Theme


@dataclass(frozen=True)
class SourceText:
    """A file ready to be shown: its lines as they are, and coloured."""

    path: str
    lines: tuple[str, ...]
    coloured: tuple[Coloured, ...]


@dataclass(frozen=True)
class Selected:
    """Whole lines `first`..`last` (1-based) of a file."""

    path: str
    first: int
    last: int
    text: str


class SourceView(QPlainTextEdit):
    """Shows a `SourceText`; nothing is edited here."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._source: SourceText | None = None
        self.setReadOnly(True)
        self.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.setAccessibleName(self.tr("File"))
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        theme.changed.connect(self._redraw)
        self._redraw()

    @property
    def path(self) -> str | None:
        """The file that is shown."""
        return self._source.path if self._source else None

    def show_source(self, source: SourceText | None) -> None:
        """Show another file, or none."""
        self._source = source
        self._redraw()

    def selected(self) -> Selected | None:
        """The lines that the selection touches; None without one."""
        cursor = self.textCursor()
        if self._source is None or not cursor.hasSelection():
            return None
        document = self.document()
        first = document.findBlock(cursor.selectionStart()).blockNumber()
        end = document.findBlock(cursor.selectionEnd())
        last = end.blockNumber() - (cursor.selectionEnd() == end.position() and end.blockNumber() > first)
        lines = self._source.lines[first : last + 1]
        return Selected(self._source.path, first + 1, last + 1, "\n".join(lines))

    def _redraw(self) -> None:
        self.setFont(self._theme.font("mono", mono=True))
        self.clear()
        if self._source is None:
            return
        width = len(str(len(self._source.coloured)))
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        for position, line in enumerate(self._source.coloured):
            if position:
                cursor.insertBlock(QTextBlockFormat())
            write_line(cursor, self._theme, f"{position + 1:>{width}}", line)
        cursor.endEditBlock()
        self.moveCursor(QTextCursor.MoveOperation.Start)

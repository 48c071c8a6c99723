"""Source text as coloured lines, writing such a line into a document, and the read-only view of a file."""

from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit

from app.gui.markdown.highlight import spans
from app.gui.theme import Theme

# Colouring longer texts would block the window; they are shown plain.
_MAX_COLOURED_CHARS = 60_000
_SUFFIX_LANGUAGES = {
    "py": "python",
    "js": "javascript",
    "ts": "typescript",
    "rs": "rust",
    "sh": "bash",
    "md": "markdown",
}

Coloured = tuple[tuple[str, str | None], ...]


def language_of(path: str) -> str:
    """The language for a file suffix. Pygments knows most suffixes itself."""
    suffix = path.rsplit(".", 1)[-1].lower()
    return _SUFFIX_LANGUAGES.get(suffix, suffix)


def coloured_lines(text: str, language: str) -> list[Coloured]:
    """The (text, colour name) spans of each line. Pure, for a worker thread."""
    text = text.replace("\r\n", "\n")
    if len(text) > _MAX_COLOURED_CHARS:
        return [((line, None),) for line in text.split("\n")]
    lines: list[list[tuple[str, str | None]]] = [[]]
    for span, colour in spans(text, language):
        first, *others = span.split("\n")
        lines[-1].append((first, colour))
        lines += [[(part, colour)] for part in others]
    return [tuple(line) for line in lines]


def write_line(cursor: QTextCursor, theme: Theme, number: str, line: Coloured) -> None:
    """Insert a numbered line at the cursor."""
    muted = QTextCharFormat()
    muted.setForeground(theme.tokens.colour("muted"))
    cursor.insertText(f"{number}  ", muted)
    for text, colour in line:
        shape = QTextCharFormat()
        name = theme.tokens.syntax.get(colour or "")
        shape.setForeground(QColor(name) if name else theme.tokens.colour("text"))
        cursor.insertText(text, shape)


# A read-only source view. Line numbers are not part of the selection.


@dataclass(frozen=True)
class SourceText:
    """A file to show: its plain and coloured lines."""

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
    """Shows a `SourceText`, read-only."""

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
        """Path of the visible file, or None."""
        return self._source.path if self._source else None

    def show_source(self, source: SourceText | None) -> None:
        """Show another file, or none."""
        self._source = source
        self._redraw()

    def selected(self) -> Selected | None:
        """The lines that the selection touches, or None without a selection."""
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

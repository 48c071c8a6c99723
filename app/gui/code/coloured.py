"""Source text as coloured lines, and writing such a line into a document."""

from PySide6.QtGui import QColor, QTextCharFormat, QTextCursor

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

# Qt would begin another line at these characters.
_BREAKS = dict.fromkeys(map(ord, "\r\u2028\u2029\ufdd0\ufdd1"), "�")

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
        cursor.insertText(text.translate(_BREAKS), shape)

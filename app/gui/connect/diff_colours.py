"""Colours of a change in the unified form: what comes, what goes, where it is."""

from PySide6.QtGui import QSyntaxHighlighter, QTextCharFormat, QTextDocument

from app.gui.theme import Theme


class DiffColours(QSyntaxHighlighter):
    """Follows the theme."""

    def __init__(self, theme: Theme, document: QTextDocument) -> None:
        super().__init__(document)
        self._theme = theme
        theme.changed.connect(self.rehighlight)

    def highlightBlock(self, text: str) -> None:
        """One line by its first sign."""
        tokens = self._theme.tokens
        shape = QTextCharFormat()
        if text.startswith(("+++", "---", "@@")):
            shape.setForeground(tokens.colour("muted"))
        elif text.startswith(("+", "-")):
            added = text.startswith("+")
            shape.setForeground(tokens.colour("ok" if added else "bad"))
            shape.setBackground(tokens.colour("ok_soft" if added else "bad_soft"))
        else:
            return
        self.setFormat(0, len(text), shape)

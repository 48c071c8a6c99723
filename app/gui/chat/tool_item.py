"""A tool's result in the transcript: one line that opens to what the model was given."""

from PySide6.QtWidgets import QFrame, QPlainTextEdit

from app.db.records import Message
from app.gui.theme import Theme
from app.gui.widgets.basics import button, set_kind, stack
from app.gui.widgets.virtual_list import ColumnItem
from app.tools.escape import shown_text

_MAX_HEIGHT = 260


class ToolItem(ColumnItem):
    """Folded at first. The text is shown as it is: a tool cannot format, link or load anything here."""

    def __init__(self, theme: Theme, message: Message) -> None:
        super().__init__()
        self.message = message
        unit = theme.tokens.unit
        self._words = self._title()
        self.fold = button("", None, "link")
        self.fold.setCheckable(True)
        self.fold.toggled.connect(lambda opened: self._show(opened=opened))
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        theme.dress(self.text, "small")
        self.text.setPlainText(shown_text(message.content))
        self.text.setAccessibleName(self.tr("What the tool answered"))
        self.text.setFixedHeight(_MAX_HEIGHT)
        frame = QFrame()
        set_kind(frame, "note")
        frame.setLayout(stack(self.fold, self.text, margins=(2 * unit, unit // 2, 2 * unit, unit // 2)))
        self._column = stack(frame, margins=(0, unit // 2, 0, unit // 2))
        self.setLayout(self._column)
        self._show(opened=False)

    def fit(self, width: int) -> int:
        """Lay out for this width."""
        del width
        self._column.activate()
        return self.sizeHint().height()

    def _title(self) -> str:
        facts = self.message.facts
        took = self.tr("{n} s").format(n=facts.seconds) if facts.seconds is not None else ""
        state = "" if facts.ok else self.tr("failed or declined")
        return " · ".join(filter(None, (facts.tool or "?", took, state)))

    def _show(self, *, opened: bool) -> None:
        self.text.setVisible(opened)
        self.fold.setText(("▾ " if opened else "▸ ") + self._words.replace("&", "&&"))
        self.fold.setAccessibleName(self._words)
        self.height_changed.emit()

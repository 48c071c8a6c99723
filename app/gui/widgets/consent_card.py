"""A question before something is done: exactly what would happen, and the answers."""

from typing import TYPE_CHECKING

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QBoxLayout, QFrame, QPlainTextEdit

from app.gui.theme import Theme
from app.gui.widgets.basics import button, label, stack

if TYPE_CHECKING:
    from app.tools.consent import ConsentRequest


class ConsentCard(QFrame):
    """Shown while somebody waits for the answer. Declining has the focus, so that a stray Enter allows nothing."""

    decided = Signal(str)
    max_height = 160  # of what would happen, in pixels

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.title = label("", "strong", wrap=True)
        self.warning = label("", "chip-warn", wrap=True)
        self.detail = QPlainTextEdit()
        self.detail.setReadOnly(True)
        theme.dress(self.detail, "small")
        self.detail.setMaximumHeight(self.max_height)
        self.detail.setAccessibleName(self.tr("What would happen"))
        self.decline = button(self.tr("Decline"), lambda: self._decide("no"))
        self.once = button(self.tr("Allow once"), lambda: self._decide("once"), "primary")
        items = (self.title, self.warning, self.detail, self.answers())
        self.setLayout(stack(*items, spacing=8, margins=(12, 12, 12, 12)))
        self.hide()

    def answers(self) -> QBoxLayout:
        """The row of buttons; `decline` and `once` are among them."""
        raise NotImplementedError

    def words(self, request: "ConsentRequest") -> str:
        """The question."""
        return request.title

    def ask(self, request: "ConsentRequest") -> None:
        """Show a question."""
        words = self.words(request)
        self.title.setText(words)
        self.warning.setText(request.warning or "")
        self.warning.setVisible(bool(request.warning))
        self.detail.setPlainText(request.detail)
        self.setAccessibleName(words)
        self.show()
        self.decline.setFocus()

    def _decide(self, decision: str) -> None:
        self.hide()
        self.decided.emit(decision)

"""The question before a tool is used: exactly what would happen, and five answers."""

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QPlainTextEdit

from app.gui.look import Look
from app.gui.widgets.basics import button, label, row, stack
from app.tools.consent import ConsentRequest

_MAX_HEIGHT = 160


class ToolConsentCard(QFrame):
    """Shown while a tool waits. Declining has the focus, so that a stray Enter allows nothing."""

    decided = Signal(str)

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.title = label("", "strong", wrap=True)
        self.warning = label("", "chip-warn", wrap=True)
        self.detail = QPlainTextEdit()
        self.detail.setReadOnly(True)
        self.detail.setFont(look.font("small", mono=True))
        self.detail.setMaximumHeight(_MAX_HEIGHT)
        self.detail.setAccessibleName(self.tr("What would happen"))
        self.decline = button(self.tr("Decline"), lambda: self._decide("no"))
        self.never = button(self.tr("Never"), lambda: self._decide("never"))
        self.always = button(self.tr("Always"), lambda: self._decide("always"))
        self.chat = button(self.tr("For this chat"), lambda: self._decide("chat"))
        self.once = button(self.tr("Allow once"), lambda: self._decide("once"), "primary")
        self.setLayout(
            stack(
                self.title,
                self.warning,
                self.detail,
                row(self.never, self.decline, 1, self.always, self.chat, self.once),
                spacing=8,
                margins=(12, 12, 12, 12),
            )
        )
        self.hide()

    def ask(self, request: ConsentRequest) -> None:
        """Show a question."""
        words = request.title
        if request.kind == "tool":
            words = self.tr("The model wants to use {tool} with:").format(tool=request.title)
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

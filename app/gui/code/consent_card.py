"""A question of the agent: exactly what would happen, and three answers."""

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QPlainTextEdit

from app.gui.look import Look
from app.gui.widgets.basics import button, label, row, stack
from app.tools.consent import ConsentRequest

_MAX_HEIGHT = 220


class ConsentCard(QFrame):
    """Shown while the agent waits. Declining has the focus, so that a stray Enter allows nothing."""

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
        self.once = button(self.tr("Allow once"), lambda: self._decide("once"), "primary")
        self.session = button(self.tr("Allow for this session"), lambda: self._decide("session"))
        self.setLayout(
            stack(
                self.title,
                self.warning,
                self.detail,
                row(1, self.decline, self.session, self.once),
                spacing=8,
                margins=(12, 12, 12, 12),
            )
        )
        self.hide()

    def ask(self, request: ConsentRequest) -> None:
        """Show a request."""
        self.title.setText(request.title)
        self.warning.setText(request.warning or "")
        self.warning.setVisible(bool(request.warning))
        self.detail.setPlainText(request.detail)
        words = self.tr("Allow further edits of this file") if request.kind == "edit" else ""
        self.session.setText(words or self.tr("Allow this again"))
        self.show()
        self.decline.setFocus()

    def _decide(self, decision: str) -> None:
        self.hide()
        self.decided.emit(decision)

"""A question of the agent, with three answers."""

from PySide6.QtWidgets import QBoxLayout

from app.gui.widgets.basics import button, row
from app.gui.widgets.consent_card import ConsentCard
from app.tools.consent import ConsentRequest


class AgentConsentCard(ConsentCard):
    """For once, or for the same thing until the session ends."""

    max_height = 220

    def answers(self) -> QBoxLayout:
        """All on the right."""
        self.session = button("", lambda: self._decide("session"))
        return row(1, self.decline, self.session, self.once)

    def ask(self, request: ConsentRequest) -> None:
        """Show a request."""
        words = self.tr("Allow further edits of this file") if request.kind == "edit" else ""
        self.session.setText(words or self.tr("Allow this again"))
        super().ask(request)

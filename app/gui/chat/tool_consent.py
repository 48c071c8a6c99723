"""The question before a tool is used, with five answers."""

from typing import TYPE_CHECKING

from PySide6.QtWidgets import QBoxLayout

from app.gui.widgets.basics import button, row
from app.gui.widgets.consent_card import ConsentCard

if TYPE_CHECKING:
    from app.tools.consent import ConsentRequest


class ToolConsentCard(ConsentCard):
    """For one call, this chat or for good."""

    def answers(self) -> QBoxLayout:
        """Refusals on the left, leave on the right."""
        self.never = button(self.tr("Never"), lambda: self._decide("never"))
        self.always = button(self.tr("Always"), lambda: self._decide("always"))
        self.chat = button(self.tr("For this chat"), lambda: self._decide("chat"))
        return row(self.never, self.decline, 1, self.always, self.chat, self.once)

    def words(self, request: "ConsentRequest") -> str:
        """The question."""
        if request.kind == "tool":
            return self.tr("The model wants to use {tool} with:").format(tool=request.title)
        return request.title

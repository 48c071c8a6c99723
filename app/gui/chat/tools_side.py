"""What the chat page shows of tools: the panel, the question before a call, and servers that did not start."""

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QBoxLayout

from app.db.records import Conversation
from app.gui.animations import appear
from app.gui.app_context import Services
from app.gui.chat.controller import ChatController
from app.gui.chat.tool_consent import ToolConsentCard
from app.gui.widgets.basics import Banner

if TYPE_CHECKING:
    from app.gui.chat.tools_panel import ToolsPanel


class ToolsSide(QObject):
    """Made with the page; the panel when it is first wanted: the window comes sooner."""

    def __init__(
        self, services: Services, controller: ChatController, banner: Banner, beside: QBoxLayout, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._services, self._controller, self._beside = services, controller, beside
        self.card = ToolConsentCard(services.theme)
        self._panel: ToolsPanel | None = None
        controller.tools.consent_wanted.connect(self.card.ask)
        controller.tools.consent_over.connect(self.card.hide)
        controller.tools.not_started.connect(lambda text: banner.notify(text, "warn"))
        controller.conversation_changed.connect(self._on_conversation)
        self.card.decided.connect(controller.tools.decide)
        controller.busy_changed.connect(self._on_busy)

    @property
    def panel(self) -> "ToolsPanel":
        """The panel of tools."""
        if self._panel is None:
            from app.gui.chat.tools_panel import ToolsPanel  # noqa: PLC0415 - not before the window is shown

            self._panel = ToolsPanel(self._services)
            self._panel.hide()
            self._beside.addWidget(self._panel)
            self._panel.changed.connect(lambda names: self._controller.change(tools=names))
        return self._panel

    def toggle(self) -> None:
        """Show or hide the panel."""
        if self.panel.isVisible():
            self.panel.hide()
        else:
            appear(self._services.theme, self.panel)
        self.panel.show_conversation(self._controller.conversation)

    def _on_busy(self, busy: bool) -> None:
        """What was decided for good meanwhile is shown."""
        if not busy and self._panel is not None and self._panel.isVisible():
            self._panel.refresh()

    def _on_conversation(self, conversation: Conversation) -> None:
        if self._panel is not None:
            self._panel.show_conversation(conversation)

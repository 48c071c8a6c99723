"""Tool widgets of the chat page: the panel, the consent card, and messages about servers that did not start."""

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QBoxLayout

from app.db.records import Conversation
from app.gui.animations import appear
from app.gui.app_context import AppContext
from app.gui.chat.controller import ChatController
from app.gui.reasons import exact, known_text
from app.gui.widgets.basics import Banner, button, row
from app.gui.widgets.popups import ConsentCard, Menu
from app.tools.builtin import SOURCES

if TYPE_CHECKING:
    from app.gui.chat.tools_panel import ToolsPanel
    from app.tools.consent import ConsentRequest


class ToolsSide(QObject):
    """Created with the page. The panel is created on first use, so that the window appears sooner."""

    def __init__(
        self, services: AppContext, controller: ChatController, banner: Banner, columns: QBoxLayout, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._services, self._controller, self._columns = services, controller, columns
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
        if self._panel is None:
            from app.gui.chat.tools_panel import ToolsPanel

            self._panel = ToolsPanel(self._services, lambda: self._controller.project.folder)
            self._panel.hide()
            self._columns.addWidget(self._panel)
            self._panel.changed.connect(lambda names: self._controller.change(tools=names))
        return self._panel

    @property
    def open_panel(self) -> "ToolsPanel | None":
        """The panel, if it was ever shown."""
        return self._panel

    def hide(self) -> None:
        if self._panel is not None:
            self._panel.hide()

    def toggle(self) -> None:
        if self.panel.isVisible():
            self.panel.hide()
        else:
            appear(self._services.theme, self.panel)
        self.panel.show_conversation(self._controller.conversation)

    def _on_busy(self, busy: bool) -> None:
        """Show permanent decisions that the user made during the response."""
        if not busy and self._panel is not None and self._panel.isVisible():
            self._panel.refresh()

    def _on_conversation(self, conversation: Conversation) -> None:
        if self._panel is not None:
            self._panel.show_conversation(conversation)


class ToolConsentCard(ConsentCard):
    """Asks whether to allow a tool: for one call, for this chat or permanently."""

    def answers(self) -> QBoxLayout:
        """Buttons for the two usual decisions; the permanent ones are in a menu."""
        self.more = button(self.tr("More choices"), lambda: self.choices().below(self.more))
        return row(self.more, 1, self.decline, self.once)

    def choices(self) -> Menu:
        menu = Menu(self._theme, self)
        for icon, decision, words in (
            ("chat", "chat", self.tr("For this chat")),
            ("check", "always", self.tr("Always")),
            ("close", "never", self.tr("Never")),
        ):
            menu.add(icon, words, partial(self._decide, decision))
        return menu

    def words(self, request: "ConsentRequest") -> str:
        """The text of the question."""
        if request.key == "remember":
            return self.tr("The model wants to remember this for later chats:")
        if request.kind == "tool":
            title = exact(request.title)
            tool = known_text(title) if request.key in SOURCES else title  # that of a server stays as it is
            return self.tr("The model wants to use {tool} with:").format(tool=tool)
        return super().words(request)

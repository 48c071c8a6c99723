"""Ctrl+K: every page, action, model and chat by its name."""

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QWidget

from app.db import conversations
from app.db.records import Conversation
from app.gui.app_context import Services
from app.gui.shortcuts import native_keys
from app.gui.widgets.search_popup import Entry, Palette


class Commands(QObject):
    """What can be done from anywhere in the window."""

    def __init__(self, services: Services, window: Any) -> None:
        super().__init__(window)
        self._services, self._window = services, window
        self._runs: dict[str, Callable[[], object]] = {}

    def open(self) -> None:
        """Show the list, with the chats as soon as they are read."""
        theme, window = self._services.theme, self._window
        assert isinstance(window, QWidget)
        palette = Palette(theme, self.tr("Commands"), self.tr("Type a command, a page, a model or a chat"), window)
        entries = self._entries()
        palette.show_entries(entries)
        palette.chosen.connect(lambda key: self._runs[key]())
        palette.open_over(window)

        def show(chats: list[Conversation]) -> None:
            found = [self._chat(chat) for chat in chats]
            palette.show_entries([*entries, *found])

        self._services.background.watch(
            self._services.store.submit(conversations.listing), show, lambda _: None, palette
        )

    def _entries(self) -> list[Entry]:
        window, settings = self._window, self._services.settings
        chat = window.chat
        self._runs = {}
        found: list[Entry] = []

        def add(title: str, run: Callable[[], object], detail: str = "") -> None:
            key = f"run {len(found)}"
            self._runs[key] = run
            found.append(Entry(key, title, detail))

        add(self.tr("New chat"), window.new_chat, native_keys("Ctrl+N"))
        add(self.tr("Choose a model"), lambda: (window.show_page("chat"), chat.bar.picker.open()))
        add(self.tr("System prompt and sampling"), lambda: (window.show_page("chat"), chat.options.show()))
        for name, title in window.titled_pages():
            add(self.tr("Go to {page}").format(page=title), lambda name=name: window.show_page(name))  # type: ignore[misc]  # bound now
        for value, title in (("light", self.tr("Light")), ("dark", self.tr("Dark")), ("system", self.tr("System"))):
            add(
                self.tr("Appearance: {theme}").format(theme=title),
                lambda value=value: settings.set("window.theme", value),  # type: ignore[misc]  # bound now
            )
        add(self.tr("Saved prompts"), lambda: (window.show_page("chat"), chat.prompts.open()), "/")
        add(self.tr("Export this chat…"), self._export)
        add(self.tr("Import chats…"), chat.import_export.import_chats)
        add(self.tr("Keyboard shortcuts"), window.show_shortcuts, "F1")
        add(self.tr("About Tessera and its licences"), window.show_about)
        for choice in self._services.models.choices:
            add(
                self.tr("Chat with {name}").format(name=choice.title),
                lambda choice=choice: (window.show_page("chat"), chat.use_model(choice.id)),  # type: ignore[misc]  # bound now
                self.tr("Model"),
            )
        return found

    def _export(self) -> None:
        chat = self._window.chat
        conversation = chat.controller.conversation
        if conversation.id:
            chat.import_export.export(conversation.id, conversation.title)

    def _chat(self, chat: Conversation) -> Entry:
        key = f"chat {chat.id}"
        self._runs[key] = lambda: (self._window.show_page("chat"), self._window.chat.open(chat.id))
        return Entry(key, chat.title or self.tr("Untitled"), self.tr("Chat"))

"""The main window: the navigation and its pages."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from PySide6.QtCore import QByteArray, QObject, QPoint, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QCloseEvent, QDragEnterEvent, QDropEvent, QIcon, QKeySequence
from PySide6.QtWidgets import (
    QHBoxLayout,
    QMainWindow,
    QMenu,
    QStackedWidget,
    QSystemTrayIcon,
    QWidget,
)

from app.attachments import parted
from app.db import conversations
from app.db.records import Conversation
from app.db.store import TEMPORARY
from app.gui.app_context import AppContext
from app.gui.chat.composer import local_files
from app.gui.chat.page import ChatPage
from app.gui.close_guard import question
from app.gui.navigation import Destination, Rail, Sections
from app.gui.shortcuts import SHORTCUTS, ShortcutSheet, native_keys
from app.gui.theme import ASSETS
from app.gui.widgets.basics import holding, stack
from app.gui.widgets.popups import MovingToast
from app.gui.widgets.search_popup import Entry, SearchPopup
from app.gui.widgets.splitter import keep_splitters, restore_splitters, window_state
from app.settings import BY_NAME

_TEXT_SIZE, _ZOOM_STEP = "window.text_percent", 10
_USUAL, _SMALLEST = QSize(1180, 760), QSize(720, 480)
# Space for the window frame, whose size is unknown before the window is shown.
# Source: GNOME, KDE and openbox themes.
_FRAME, _FRAME_TOP = 4, 40


@dataclass(frozen=True)
class PageEntry:
    """A page, created when it is first shown."""

    name: str
    icon: str
    title: str
    make: Callable[[], QWidget]
    group: tuple[str, str, str] | None = None  # name, icon and title of its destination


class MainWindow(QMainWindow):
    """Navigation, shortcuts, drag and drop, and state saved between starts."""

    models_dropped = Signal(list)
    server_wanted = Signal()
    closed = Signal()
    _quitting = False
    _sure = False

    def __init__(self, services: AppContext, pages: Callable[["MainWindow"], list[PageEntry]]) -> None:
        super().__init__()
        self._services = services
        self.setWindowTitle("Tessera")
        self.setWindowIcon(QIcon(str(ASSETS / "icons" / "tessera.svg")))
        self.setMinimumSize(_SMALLEST)
        self.setAcceptDrops(True)
        self.tray = Tray(self, self.quit)
        self.find_lost: Callable[[], list[str]] = list
        self.chat = ChatPage(services)
        self._built: dict[str, QWidget] = {"chat": self.chat}
        self._entries = {entry.name: entry for entry in pages(self)}
        self._stack = QStackedWidget()
        self._stack.addWidget(self.chat)
        self._destinations = self._group_pages()
        self._newest = {place.name: place.pages[0] for place in self._destinations}
        self._rail = Rail(services.theme, self._destinations)
        self._rail.chosen.connect(lambda name: self.show_page(self._newest[name]))
        self._sections = Sections()
        self._sections.chosen.connect(self.show_page)
        right = holding(stack(self._sections, self._stack, spacing=0))
        self.banner = MovingToast(services.theme, right)
        holder = QWidget()
        layout = QHBoxLayout(holder)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self._rail)
        layout.addWidget(right, 1)
        self.setCentralWidget(holder)
        self.chat.server_wanted.connect(self.server_wanted)
        self.commands = Commands(services, self)
        self._add_shortcuts()
        self._geometry = window_state()
        self._restore()
        self.show_page("chat")

    @property
    def page_names(self) -> list[str]:
        return [name for place in self._destinations for name in place.pages]

    @property
    def destination_names(self) -> list[str]:
        """Names of the destinations, in bar order."""
        return [place.name for place in self._destinations]

    def page(self, name: str) -> QWidget:
        """The page with this name. Creates it on first use."""
        if name not in self._built:
            self._built[name] = self._entries[name].make()
            restore_splitters(self._built[name], self._geometry)
            self._stack.addWidget(self._built[name])
        return self._built[name]

    def show_page(self, name: str) -> None:
        page = self.page(name)
        self._stack.setCurrentWidget(page)
        self.banner.follow(page, getattr(page, "banner", None))
        place = next(place for place in self._destinations if name in place.pages)
        self._rail.select(place.name)
        if name == "chat":  # the chat list links to the Documents page, and the chat needs the height
            self._sections.show_pages([], name)
            self.chat.composer.editor.setFocus()
            return
        if place.name != "chat":
            self._newest[place.name] = name
        titles = {entry.name: entry.title for entry in self._entries.values()}
        self._sections.show_pages([(page, titles.get(page, place.title)) for page in place.pages], name)

    def first_time(self, name: str) -> bool:
        """Return True if this is the first call with this name, in this or any earlier run."""
        key = f"seen/{name}"
        if self._geometry.value(key):
            return False
        self._geometry.setValue(key, 1)
        return True

    def repeat_first_time(self, name: str) -> None:
        """Let the next `first_time` with this name return True again."""
        self._geometry.remove(f"seen/{name}")

    def save_state(self) -> None:
        """Save the draft, which ends what waits to be sent, and the layout."""
        self.chat.save_draft()
        self._save_layout()

    def _save_layout(self) -> None:
        self._geometry.setValue("geometry", self.saveGeometry())
        self._geometry.setValue("sidebar", self.chat.saveState())
        for page in self._built.values():
            keep_splitters(page, self._geometry)
        number = self.chat.controller.conversation.id
        self._geometry.setValue("conversation", number if number < TEMPORARY else 0)
        self._geometry.setValue("draft", self.chat.new_chat_draft)
        self._geometry.sync()

    def _restore(self) -> None:
        self.resize(_USUAL)
        geometry = self._geometry.value("geometry")
        if isinstance(geometry, QByteArray):
            self.restoreGeometry(geometry)
        self._stay_on_screen()
        sidebar = self._geometry.value("sidebar")
        if isinstance(sidebar, QByteArray):
            self.chat.restoreState(sidebar)
        draft = self._geometry.value("draft", "")
        number = str(self._geometry.value("conversation", "0"))
        self.chat.composer.set_text(str(draft))  # of the new chat, also if another one is opened now
        if number.isdigit() and int(number):
            QTimer.singleShot(0, self, lambda: self.chat.open(int(number)))

    def _stay_on_screen(self) -> None:
        """Fit the window with its frame into the screen's available area."""
        screen = self.screen()
        if screen is None or self.isMaximized() or self.isFullScreen():
            return
        free = screen.availableGeometry().adjusted(_FRAME, _FRAME_TOP, -_FRAME, -_FRAME)
        self.setMinimumSize(_SMALLEST.boundedTo(free.size()))
        size = self.size().boundedTo(free.size())
        if size != self.size():
            self.resize(size)
        if not free.contains(self.geometry()):
            margin = screen.availableGeometry().size() - self.size() - QSize(0, _FRAME_TOP)
            self.move(
                screen.availableGeometry().topLeft()
                + QPoint(max(margin.width(), 0) // 2, max(margin.height(), 0) // 2)
            )

    def _group_pages(self) -> list[Destination]:
        """The destinations: the chat, then the pages grouped by `PageEntry.group`."""
        destinations = [Destination("chat", "chat", self.tr("Chat"), ("chat",))]
        for entry in self._entries.values():
            name, icon, title = entry.group or (entry.name, entry.icon, entry.title)
            if destinations[-1].name == name:
                destinations[-1] = replace(destinations[-1], pages=(*destinations[-1].pages, entry.name))
            else:
                destinations.append(Destination(name, icon, title, (entry.name,), at_foot=entry.name == "settings"))
        return destinations

    def _add_shortcuts(self) -> None:
        runs: dict[str, Callable[[], object]] = {
            "new": self.new_chat,
            "temporary": self.new_temporary_chat,
            "find": self._find,
            "write": lambda: self.show_page("chat"),
            "stop": self.stop_answer,
            "settings": lambda: self.show_page("settings"),
            "help": self.show_shortcuts,
            "palette": self.commands.open,
            "quit": self.quit,
            "again": self.chat.message_actions.answer_again,
            "edit": self.chat.message_actions.edit_last,
            "copy": self.chat.message_actions.copy_last,
            "dictate": self._dictate,
            "read": self.chat.message_actions.read_last,
            "next": lambda: self.chat.sidebar.step(1),
            "previous": lambda: self.chat.sidebar.step(-1),
            "list": self.chat.bar.fold_pressed.emit,
            "larger": lambda: self._zoom(_ZOOM_STEP),
            "smaller": lambda: self._zoom(-_ZOOM_STEP),
            "normal": lambda: self._services.settings.set(_TEXT_SIZE, 100),
        }
        for shortcut in SHORTCUTS:
            if shortcut.name in runs:
                self._add_shortcut(shortcut.keys, runs[shortcut.name])
        for position, name in enumerate(self.destination_names[:9]):
            self._add_shortcut(f"Ctrl+{position + 1}", partial(self._rail.chosen.emit, name))

    def _zoom(self, step: int) -> None:
        setting = BY_NAME[_TEXT_SIZE]
        percent = self._services.settings.now.integer(_TEXT_SIZE) + step
        bounded = min(max(percent, int(setting.minimum or 0)), int(setting.maximum or percent))
        self._services.settings.set(_TEXT_SIZE, bounded)

    def _add_shortcut(self, keys: str, run: Callable[[], object]) -> None:
        action = QAction(self)
        action.setShortcut(QKeySequence(keys))
        action.triggered.connect(lambda _checked=False: run())
        self.addAction(action)

    def titled_pages(self) -> list[tuple[str, str]]:
        titles = {name: entry.title for name, entry in self._entries.items()}
        pages = []
        for place in self._destinations:
            for name in place.pages:
                title = titles.get(name, place.title)
                pages.append((name, title if title == place.title else f"{place.title}: {title}"))
        return pages

    def stop_answer(self) -> None:
        """Stop generation on the visible page, else in the chat."""
        getattr(self._stack.currentWidget(), "stop_answer", self.chat.stop)()

    def new_chat(self) -> None:
        self.show_page("chat")
        self.chat.new_chat()

    def new_temporary_chat(self) -> None:
        self.show_page("chat")
        self.chat.new_temporary_chat()

    def _dictate(self) -> None:
        self.show_page("chat")
        self.chat.voice.dictation.toggle()

    def _find(self) -> None:
        self.show_page("chat")
        self.chat.sidebar.show()
        self.chat.sidebar.focus_search()

    def show_shortcuts(self) -> None:
        ShortcutSheet(min(len(self._destinations), 9), self).open()

    def show_about(self) -> None:
        from app.gui.about import About

        About(self._services, self).open()

    def quit(self) -> None:
        """Quit, even if the tray icon would keep the program running."""
        self._quitting = True
        self.close()
        self._quitting = False

    def restart(self) -> None:
        """Quit, then start the window again. If work would be lost, the user decides first."""
        self.starts_again = True
        self.quit()

    starts_again = False  # the program starts again after this window has closed

    def open_files(self, files: list[str]) -> None:
        """Open models in the library and attach other files to the chat."""
        models, others = parted(files)
        if others:
            self.show_page("chat")
            self.chat.composer.attach(others)
        if models:
            self.models_dropped.emit(models)
        self.tray.show_window()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Accept files anywhere in the window."""
        if local_files(event.mimeData()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        self.open_files(local_files(event.mimeData()))
        event.acceptProposedAction()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Save the state and close. Asks first only if closing would lose unfinished jobs."""
        if self.tray.keeps_running and not self._quitting:
            self._save_layout()  # messages that wait for the running answer are sent as usual
            self.hide()
            event.ignore()
            return
        lost = self.find_lost()
        if lost and not self._sure:
            event.ignore()
            self.tray.show_window()
            close = partial(self.quit_now, starts_again=self.starts_again)
            self.starts_again = False  # until the user decides to close
            self.banner.notify(question(lost), "warn", (self.tr("Close"), close), (self.tr("Stay"), lambda: None))
            return
        self.save_state()
        self.chat.stop()
        super().closeEvent(event)
        self.closed.emit()

    def quit_now(self, *, starts_again: bool = False) -> None:
        """Quit without asking."""
        self._sure, self.starts_again = True, starts_again
        self.quit()


class Tray(QObject):
    """Tray icon. While it is visible, closing the window hides it; the icon's menu shows it again or quits."""

    def __init__(self, window: QMainWindow, quit_app: Callable[[], object]) -> None:
        super().__init__(window)
        self._window = window
        self._quit = quit_app
        self._icon: QSystemTrayIcon | None = None
        self._menu: QMenu | None = None

    @property
    def keeps_running(self) -> bool:
        """Whether closing the window only hides it."""
        return self._icon is not None and self._icon.isVisible()

    def set_wanted(self, enabled: bool) -> None:
        """Show or remove the icon. Does nothing if the system has no tray."""
        if not enabled or not QSystemTrayIcon.isSystemTrayAvailable():
            if self._icon is not None:
                self._icon.hide()
                self._icon.deleteLater()
                self._icon = None
            return
        if self._icon is not None:
            return
        self._menu = QMenu(self._window)
        self._menu.addAction(self.tr("Show Tessera"), self.show_window)
        self._menu.addAction(self.tr("Quit"), self._quit)
        self._icon = QSystemTrayIcon(QIcon(str(ASSETS / "icons" / "tessera.svg")), self, toolTip="Tessera")
        self._icon.setContextMenu(self._menu)
        self._icon.activated.connect(self._on_activated)
        self._icon.show()

    def tell(self, words: str) -> None:
        """Show a desktop notification, if there is a tray icon."""
        if self._icon is not None:
            self._icon.showMessage("Tessera", words)

    def show_window(self) -> None:
        """Bring the window to the front, also if it is hidden or minimized."""
        self._window.setWindowState(self._window.windowState() & ~Qt.WindowState.WindowMinimized)
        self._window.show()
        self._window.raise_()
        self._window.activateWindow()

    def _on_activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason == QSystemTrayIcon.ActivationReason.Trigger:
            self.show_window()


class Commands(QObject):
    """The command palette, available from every page."""

    def __init__(self, services: AppContext, window: Any) -> None:
        super().__init__(window)
        self._services, self._window = services, window
        self._runs: dict[str, Callable[[], object]] = {}

    def open(self) -> None:
        """Show the palette. Chats are added when they have been read."""
        theme, window = self._services.theme, self._window
        assert isinstance(window, QWidget)
        palette = SearchPopup(
            theme, self.tr("Commands"), self.tr("Type a command, a page, a model or a chat"), window
        )
        entries = self._entries()
        palette.show_entries(entries)
        palette.chosen.connect(lambda key: self._runs[key]())
        palette.open_over(window)

        def show(chats: list[Conversation]) -> None:
            chat_entries = [self._chat(chat) for chat in chats]
            palette.show_entries([*entries, *chat_entries])

        self._services.background.watch(
            self._services.store.submit(conversations.listing), show, lambda _: None, palette
        )

    def _entries(self) -> list[Entry]:
        window, settings = self._window, self._services.settings
        chat = window.chat
        self._runs = {}
        entries: list[Entry] = []

        def add(title: str, run: Callable[[], object], detail: str = "") -> None:
            key = f"run {len(entries)}"
            self._runs[key] = run
            entries.append(Entry(key, title, detail))

        add(self.tr("New chat"), window.new_chat, native_keys("Ctrl+N"))
        add(self.tr("New temporary chat"), window.new_temporary_chat, native_keys("Ctrl+Shift+N"))
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
        return entries

    def _export(self) -> None:
        chat = self._window.chat
        conversation = chat.controller.conversation
        if conversation.id:
            chat.import_export.export(conversation.id, conversation.title)

    def _chat(self, chat: Conversation) -> Entry:
        key = f"chat {chat.id}"
        self._runs[key] = lambda: (self._window.show_page("chat"), self._window.chat.open(chat.id))
        return Entry(key, chat.title or self.tr("Untitled"), self.tr("Chat"))

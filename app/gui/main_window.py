"""The window: pages behind a rail of icons."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from PySide6.QtCore import QByteArray, QPoint, QSettings, QSize, QTimer, Signal
from PySide6.QtGui import QAction, QCloseEvent, QDragEnterEvent, QDropEvent, QIcon, QKeySequence
from PySide6.QtWidgets import QHBoxLayout, QMainWindow, QStackedWidget, QWidget

from app.gui.app_context import Services
from app.gui.chat.page import ChatPage
from app.gui.close_guard import question
from app.gui.commands import Commands
from app.gui.navigation import Destination, Rail, Sections
from app.gui.shortcuts import SHORTCUTS, ShortcutSheet
from app.gui.theme import ASSETS
from app.gui.tray import Tray
from app.gui.widgets.basics import Banner, stack
from app.gui.widgets.splitter import keep_splitters, restore_splitters
from engine.core.paths import user_paths

_USUAL, _SMALLEST = QSize(1180, 760), QSize(720, 480)
# Room for the frame of a window, which is not known before it is shown. Source: GNOME, KDE and openbox themes.
_FRAME, _FRAME_TOP = 4, 40


@dataclass(frozen=True)
class PageEntry:
    """A page: made when it is first shown."""

    name: str
    icon: str
    title: str
    make: Callable[[], QWidget]
    group: tuple[str, str, str] | None = None  # name, icon and title of the destination it belongs to


class MainWindow(QMainWindow):
    """Navigation, shortcuts, drag and drop, and what is kept between starts."""

    model_dropped = Signal(str)
    server_wanted = Signal()
    closed = Signal()
    _quitting = False
    _sure = False

    def __init__(self, services: Services, pages: Callable[["MainWindow"], list[PageEntry]]) -> None:
        super().__init__()
        self._services = services
        self.setWindowTitle("Tessera")
        self.setWindowIcon(QIcon(str(ASSETS / "icons" / "tessera.svg")))
        self.setMinimumSize(_SMALLEST)
        self.setAcceptDrops(True)
        self.banner = Banner(services.theme)
        self.tray = Tray(self, self.quit)
        self.find_lost: Callable[[], list[str]] = list
        self.chat = ChatPage(services)
        self._made: dict[str, QWidget] = {"chat": self.chat}
        self._entries = {entry.name: entry for entry in pages(self)}
        self._stack = QStackedWidget()
        self._stack.addWidget(self.chat)
        self._destinations = self._group_pages()
        self._newest = {place.name: place.pages[0] for place in self._destinations}
        self._rail = Rail(services.theme, self._destinations)
        self._rail.chosen.connect(lambda name: self.show_page(self._newest[name]))
        self._sections = Sections()
        self._sections.chosen.connect(self.show_page)
        right = QWidget()
        right.setLayout(stack(self.banner, self._sections, self._stack, spacing=0))
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
        self._geometry = QSettings(str(user_paths().state / "window.ini"), QSettings.Format.IniFormat)
        self._restore()
        self.show_page("chat")

    @property
    def page_names(self) -> list[str]:
        """All pages in the order of the destinations."""
        return [name for place in self._destinations for name in place.pages]

    @property
    def destination_names(self) -> list[str]:
        """The destinations in the order of the bar."""
        return [place.name for place in self._destinations]

    def page(self, name: str) -> QWidget:
        """A page, made if need be."""
        if name not in self._made:
            self._made[name] = self._entries[name].make()
            restore_splitters(self._made[name], self._geometry)
            self._stack.addWidget(self._made[name])
        return self._made[name]

    def show_page(self, name: str) -> None:
        """Switch to a page."""
        self._stack.setCurrentWidget(self.page(name))
        place = next(place for place in self._destinations if name in place.pages)
        self._rail.select(place.name)
        if name == "chat":  # its list of chats leads to the other page, and its height belongs to the talk
            self._sections.show_pages([], name)
            self.chat.composer.editor.setFocus()
            return
        if place.name != "chat":
            self._newest[place.name] = name
        titles = {entry.name: entry.title for entry in self._entries.values()}
        self._sections.show_pages([(page, titles.get(page, place.title)) for page in place.pages], name)

    def save_state(self) -> None:
        """Keep geometry and draft."""
        self.chat.save_draft()
        self._geometry.setValue("geometry", self.saveGeometry())
        self._geometry.setValue("sidebar", self.chat.saveState())
        for page in self._made.values():
            keep_splitters(page, self._geometry)
        self._geometry.setValue("conversation", self.chat.controller.conversation.id)
        if not self.chat.controller.conversation.id:
            self._geometry.setValue("draft", self.chat.composer.text)
        else:
            self._geometry.remove("draft")
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
        if number.isdigit() and int(number):
            QTimer.singleShot(0, self, lambda: self.chat.open(int(number)))
        elif draft:
            self.chat.composer.set_text(str(draft))

    def _stay_on_screen(self) -> None:
        """No larger than the screen with the frame that a window manager adds, and inside it."""
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
        """The destinations: the chat, and the pages in the groups their entries name."""
        made = [Destination("chat", "chat", self.tr("Chat"), ("chat",))]
        for entry in self._entries.values():
            name, icon, title = entry.group or (entry.name, entry.icon, entry.title)
            if made[-1].name == name:
                made[-1] = replace(made[-1], pages=(*made[-1].pages, entry.name))
            else:
                made.append(Destination(name, icon, title, (entry.name,), at_foot=entry.name == "settings"))
        return made

    def _add_shortcuts(self) -> None:
        runs: dict[str, Callable[[], object]] = {
            "new": self.new_chat,
            "find": self._find,
            "write": lambda: self.show_page("chat"),
            "stop": self.stop_answer,
            "settings": lambda: self.show_page("settings"),
            "help": self.show_shortcuts,
            "palette": self.commands.open,
            "quit": self.quit,
        }
        for shortcut in SHORTCUTS:
            if shortcut.name in runs:
                self._add_shortcut(shortcut.keys, runs[shortcut.name])
        for position, name in enumerate(self.destination_names[:9]):
            self._add_shortcut(f"Ctrl+{position + 1}", partial(self._rail.chosen.emit, name))

    def _add_shortcut(self, keys: str, run: Callable[[], object]) -> None:
        action = QAction(self)
        action.setShortcut(QKeySequence(keys))
        action.triggered.connect(lambda _checked=False: run())
        self.addAction(action)

    def titled_pages(self) -> list[tuple[str, str]]:
        """Name and title of every page."""
        titles = {name: entry.title for name, entry in self._entries.items()}
        found = []
        for place in self._destinations:
            for name in place.pages:
                title = titles.get(name, place.title)
                found.append((name, title if title == place.title else f"{place.title}: {title}"))
        return found

    def stop_answer(self) -> None:
        """End the answer of the page that is shown; of the chat where that page has none."""
        getattr(self._stack.currentWidget(), "stop_answer", self.chat.stop)()

    def new_chat(self) -> None:
        self.show_page("chat")
        self.chat.new_chat()

    def _find(self) -> None:
        self.show_page("chat")
        self.chat.sidebar.show()
        self.chat.sidebar.focus_search()

    def show_shortcuts(self) -> None:
        """The sheet of shortcuts."""
        ShortcutSheet(min(len(self._destinations), 9), self).open()

    def show_about(self) -> None:
        """Version and licences."""
        from app.gui.about import About  # noqa: PLC0415 - rarely used

        About(self._services, self).open()

    def quit(self) -> None:
        """Close for good, tray or not."""
        self._quitting = True
        self.close()
        self._quitting = False

    def open_files(self, files: list[str]) -> None:
        """Models go to the library, other files to the chat."""
        for name in files:
            path = Path(name)
            if path.suffix.lower() == ".gguf" or path.is_dir():
                self.model_dropped.emit(str(path))
            else:
                self.show_page("chat")
                self.chat.composer.attach([name])
        self.raise_()
        self.activateWindow()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Files may be dropped anywhere."""
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        """Take what was dropped."""
        self.open_files([url.toLocalFile() for url in event.mimeData().urls() if url.isLocalFile()])
        event.acceptProposedAction()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Drafts and answers under way are kept; only work that would begin again is worth a question."""
        self.save_state()
        if self.tray.keeps_running and not self._quitting:
            self.hide()
            event.ignore()
            return
        lost = self.find_lost()
        if lost and not self._sure:
            event.ignore()
            self.tray.show_window()
            self.banner.notify(
                question(lost), "warn", (self.tr("Close"), self.quit_now), (self.tr("Stay"), lambda: None)
            )
            return
        self.chat.stop()
        super().closeEvent(event)
        self.closed.emit()

    def quit_now(self) -> None:
        """Close for good without a question."""
        self._sure = True
        self.quit()

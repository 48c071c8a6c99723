"""The window: pages behind a rail of icons."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PySide6.QtCore import QByteArray, QSettings, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QCloseEvent, QDragEnterEvent, QDropEvent, QIcon, QKeySequence
from PySide6.QtWidgets import QButtonGroup, QFrame, QHBoxLayout, QMainWindow, QStackedWidget, QToolButton, QWidget

from app.gui.chat.page import ChatPage
from app.gui.leaving import question
from app.gui.look import ASSETS
from app.gui.services import Services
from app.gui.shortcuts import SHORTCUTS, ShortcutSheet
from app.gui.tray import Tray
from app.gui.widgets.basics import Banner, stack
from engine.paths import user_paths


@dataclass(frozen=True)
class PageEntry:
    """A page: made when it is first shown."""

    name: str
    icon: str
    title: str
    make: Callable[[], QWidget]


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
        self.setMinimumSize(QSize(720, 480))
        self.setAcceptDrops(True)
        self.banner = Banner(services.look)
        self.tray = Tray(self, self.quit)
        self.find_lost: Callable[[], list[str]] = list
        self.chat = ChatPage(services)
        self._made: dict[str, QWidget] = {"chat": self.chat}
        self._entries = {entry.name: entry for entry in pages(self)}
        self._stack = QStackedWidget()
        self._stack.addWidget(self.chat)
        self._rail = QFrame()
        self._rail.setProperty("kind", "rail")
        self._group = QButtonGroup(self)
        self._buttons: dict[str, QToolButton] = {}
        self._build_rail()
        services.look.changed.connect(self._refresh_rail)
        right = QWidget()
        right.setLayout(stack(self.banner, self._stack, spacing=0))
        holder = QWidget()
        layout = QHBoxLayout(holder)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self._rail)
        layout.addWidget(right, 1)
        self.setCentralWidget(holder)
        self._add_shortcuts()
        self._geometry = QSettings(str(user_paths().state / "window.ini"), QSettings.Format.IniFormat)
        self._restore()
        self.show_page("chat")

    @property
    def page_names(self) -> list[str]:
        """All pages in the order of the rail."""
        return ["chat", *self._entries]

    def page(self, name: str) -> QWidget:
        """A page, made if need be."""
        if name not in self._made:
            self._made[name] = self._entries[name].make()
            self._stack.addWidget(self._made[name])
        return self._made[name]

    def show_page(self, name: str) -> None:
        """Switch to a page."""
        self._stack.setCurrentWidget(self.page(name))
        self._buttons[name].setChecked(True)
        if name == "chat":
            self.chat.composer.editor.setFocus()

    def save_state(self) -> None:
        """Keep geometry and draft."""
        self.chat.save_draft()
        self._geometry.setValue("geometry", self.saveGeometry())
        self._geometry.setValue("sidebar", self.chat.saveState())
        self._geometry.setValue("conversation", self.chat.controller.conversation.id)
        if not self.chat.controller.conversation.id:
            self._geometry.setValue("draft", self.chat.composer.text)
        else:
            self._geometry.remove("draft")
        self._geometry.sync()

    def _restore(self) -> None:
        self.resize(1180, 760)
        geometry = self._geometry.value("geometry")
        if isinstance(geometry, QByteArray):
            self.restoreGeometry(geometry)
        sidebar = self._geometry.value("sidebar")
        if isinstance(sidebar, QByteArray):
            self.chat.restoreState(sidebar)
        draft = self._geometry.value("draft", "")
        number = str(self._geometry.value("conversation", "0"))
        if number.isdigit() and int(number):
            QTimer.singleShot(0, self, lambda: self.chat.open(int(number)))
        elif draft:
            self.chat.composer.set_text(str(draft))

    def _build_rail(self) -> None:
        column = stack(spacing=4, margins=(8, 12, 8, 12))
        entries = [PageEntry("chat", "chat", self.tr("Chat"), lambda: self.chat), *self._entries.values()]
        for position, entry in enumerate(entries):
            made = QToolButton()
            made.setProperty("kind", "nav")
            made.setCheckable(True)
            made.setText(entry.title)
            made.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextUnderIcon)
            made.setIconSize(QSize(22, 22))
            made.setFixedWidth(80)
            made.setAccessibleName(entry.title)
            made.setToolTip(f"{entry.title} (Ctrl+{position + 1})")
            made.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            made.clicked.connect(lambda _=False, name=entry.name: self.show_page(name))
            self._group.addButton(made)
            self._buttons[entry.name] = made
            if entry.name == "settings":
                column.addStretch(1)
            column.addWidget(made)
        self._rail.setLayout(column)
        self._refresh_rail()

    def _refresh_rail(self) -> None:
        icons = {"chat": "chat", **{name: entry.icon for name, entry in self._entries.items()}}
        for name, made in self._buttons.items():
            made.setIcon(self._services.look.icon(icons[name]))

    def _add_shortcuts(self) -> None:
        runs: dict[str, Callable[[], object]] = {
            "new": self._new_chat,
            "find": self._find,
            "write": lambda: self.show_page("chat"),
            "stop": self.chat.stop,
            "settings": lambda: self.show_page("settings"),
            "help": self.show_shortcuts,
            "quit": self.quit,
        }
        for shortcut in SHORTCUTS:
            if shortcut.name in runs:
                self._add_shortcut(shortcut.keys, runs[shortcut.name])
        for position, name in enumerate(self.page_names[:9]):
            self._add_shortcut(f"Ctrl+{position + 1}", partial(self.show_page, name))

    def _add_shortcut(self, keys: str, run: Callable[[], object]) -> None:
        action = QAction(self)
        action.setShortcut(QKeySequence(keys))
        action.triggered.connect(lambda _checked=False: run())
        self.addAction(action)

    def _new_chat(self) -> None:
        self.show_page("chat")
        self.chat.new_chat()

    def _find(self) -> None:
        self.show_page("chat")
        self.chat.sidebar.show()
        self.chat.sidebar.focus_search()

    def show_shortcuts(self) -> None:
        """The sheet of shortcuts."""
        ShortcutSheet(min(len(self.page_names), 9), self).open()

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
        """Drafts and answers under way are kept; only work that would begin anew is worth a question."""
        self.save_state()
        if self.tray.keeps_running and not self._quitting:
            self.hide()
            event.ignore()
            return
        lost = self.find_lost()
        if lost and not self._sure:
            event.ignore()
            self.tray.show_window()
            self.banner.tell(
                question(lost), "warn", (self.tr("Close"), self._close_anyway), (self.tr("Stay"), lambda: None)
            )
            return
        self.chat.stop()
        super().closeEvent(event)
        self.closed.emit()

    def _close_anyway(self) -> None:
        self._sure = True
        self.quit()

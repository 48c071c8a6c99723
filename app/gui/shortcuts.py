"""All shortcuts of the window, in one table for the keys, the sheet and the settings page."""

from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QDialog, QGridLayout, QWidget

from app.gui.widgets.basics import SCROLL_BAR, button, label, row, scrolled, stack
from app.gui.widgets.popups import largest_dialog


@dataclass(frozen=True)
class Shortcut:
    """A shortcut. `name` is the action that the window connects; if empty, a control handles the key."""

    name: str
    keys: str
    words: str


# PAGES stands for Ctrl+1, Ctrl+2 and so on, one per page.
PAGES = "pages"
SHORTCUTS: tuple[Shortcut, ...] = (
    Shortcut("new", "Ctrl+N", "New chat"),
    Shortcut("temporary", "Ctrl+Shift+N", "New temporary chat"),
    Shortcut("find", "Ctrl+F", "Search all chats"),
    Shortcut("write", "Ctrl+L", "Write a message"),
    Shortcut("", "Return", "Send"),
    Shortcut("", "Shift+Return", "New line"),
    Shortcut("stop", "Esc", "Stop dictation, reading aloud or the answer"),
    Shortcut("again", "Ctrl+R", "Answer again"),
    Shortcut("edit", "Ctrl+E", "Edit the last message"),
    Shortcut("copy", "Ctrl+Shift+C", "Copy the last answer"),
    Shortcut("dictate", "Ctrl+Shift+D", "Dictate a message"),
    Shortcut("read", "Ctrl+Shift+L", "Read the last answer aloud"),
    Shortcut("next", "Ctrl+PgDown", "Next chat"),
    Shortcut("previous", "Ctrl+PgUp", "Previous chat"),
    Shortcut("list", "Ctrl+B", "Show or hide the list of chats"),
    Shortcut("", "F2", "Rename the selected chat"),
    Shortcut("", "Del", "Delete what is selected in a list"),
    Shortcut("", "F7", "Next change of a file"),
    Shortcut("", "Shift+F7", "Previous change of a file"),
    Shortcut("", "Ctrl+Return", "Accept the change"),
    Shortcut("", "Ctrl+Backspace", "Reject the change"),
    Shortcut("larger", "Ctrl++", "Larger text"),
    Shortcut("smaller", "Ctrl+-", "Smaller text"),
    Shortcut("normal", "Ctrl+0", "Normal text size"),
    Shortcut(PAGES, "Ctrl+1", "Switch page, in the order of the bar"),
    Shortcut("settings", "Ctrl+,", "Settings"),
    Shortcut("palette", "Ctrl+K", "Find a command, a chat or a model"),
    Shortcut("help", "F1", "This list"),
    Shortcut("quit", "Ctrl+Q", "Quit"),
)


_SHEET_WIDTH = 66  # letters


def native_keys(keys: str) -> str:
    """`Ctrl+N` in the notation of this system and language."""
    return QKeySequence(keys).toString(QKeySequence.SequenceFormat.NativeText)


def shown_keys(shortcut: Shortcut, num_pages: int) -> str:
    """The keys in this system's notation."""
    first = native_keys(shortcut.keys)
    return first if shortcut.name != PAGES else f"{first} … {native_keys(f'Ctrl+{num_pages}')}"


def words_of(shortcut: Shortcut) -> str:
    """The translated description."""
    return QCoreApplication.translate("shortcuts", shortcut.words)


class ShortcutSheet(QDialog):
    """Lists all shortcuts; Esc closes it."""

    def __init__(self, num_pages: int, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Shortcuts"))
        grid = QGridLayout()
        grid.setColumnStretch(0, 1)
        grid.setHorizontalSpacing(48)
        grid.setVerticalSpacing(8)
        for number, shortcut in enumerate(SHORTCUTS):
            grid.addWidget(label(words_of(shortcut), wrap=True), number, 0)
            grid.addWidget(label(shown_keys(shortcut, num_pages), "chip"), number, 1, Qt.AlignmentFlag.AlignRight)
        close = button(self.tr("Close"), self.close)
        area = scrolled(grid, self.tr("Shortcuts"))
        grid.setContentsMargins(24, 0, 24, 0)
        head = row(label(self.tr("Shortcuts"), "title"), margins=(24, 24, 24, 8))
        self.setLayout(stack(head, area, row(1, close, margins=(24, 8, 24, 24)), spacing=0))
        most = largest_dialog(parent)
        width = min(_SHEET_WIDTH * self.fontMetrics().averageCharWidth(), most.width())
        frame = self.sizeHint().height() - area.sizeHint().height()
        self.resize(width, min(grid.totalHeightForWidth(width - SCROLL_BAR) + frame, most.height()))

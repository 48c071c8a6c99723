"""Parts of pages: splitters and folded options, whose state is saved between starts, and side panels."""

from PySide6.QtCore import QByteArray, QSettings, Qt, Signal
from PySide6.QtWidgets import QFrame, QSizePolicy, QSplitter, QToolButton, QWidget

from app.gui.theme import Theme
from app.gui.widgets.basics import stack
from engine.core.paths import user_paths

_GROUP = "splitters"
_OPEN = "open"
_SIDE, _BODY = 304, 14  # pixels of a side panel and of body text at the normal text size
_ANY_WIDTH = 16_777_215  # Qt's largest size


def saved_splitter(name: str, first: QWidget, second: QWidget, *, sizes: tuple[int, int]) -> QSplitter:
    """A horizontal splitter whose second side grows. `sizes` in pixels apply until the user moves it."""
    splitter = QSplitter(Qt.Orientation.Horizontal)
    splitter.setObjectName(name)
    splitter.setHandleWidth(1)
    splitter.setChildrenCollapsible(False)
    for side in (first, second):
        splitter.addWidget(side)
    splitter.setStretchFactor(0, 0)
    splitter.setStretchFactor(1, 1)
    splitter.setSizes(list(sizes))
    return splitter


def keep_splitters(page: QWidget, settings: QSettings) -> None:
    """Save the splitter sizes of a page."""
    for split in _named_splitters(page):
        settings.setValue(f"{_GROUP}/{split.objectName()}", split.saveState())


def restore_splitters(page: QWidget, settings: QSettings) -> None:
    """Restore the splitter sizes of a page."""
    for split in _named_splitters(page):
        state = settings.value(f"{_GROUP}/{split.objectName()}")
        if isinstance(state, QByteArray):
            split.restoreState(state)


def _named_splitters(page: QWidget) -> list[QSplitter]:
    return [split for split in page.findChildren(QSplitter) if split.objectName()]


def window_state() -> QSettings:
    """State that the window saves between starts: geometry, splitters, open parts."""
    return QSettings(str(user_paths().state / "window.ini"), QSettings.Format.IniFormat)


class SidePanel(QFrame):
    """Options at the side of a page, wider for larger text."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._its_theme, self._alone = theme, False
        self.setProperty("kind", "side")
        self._fit_width()
        theme.changed.connect(self._fit_width)

    def _fit_width(self) -> None:
        width = round(_SIDE * max(1.0, self._its_theme.tokens.body / _BODY))
        self.setMinimumWidth(width)
        self.setMaximumWidth(_ANY_WIDTH if self._alone else width)

    def set_alone(self, *, alone: bool) -> None:
        """Set whether the panel takes the whole width, because nothing next to it would be readable."""
        if alone != self._alone:
            self._alone = alone
            self._fit_width()


class Disclosure(QWidget):
    """A heading that shows and hides its body. Starts closed, later as the user left it."""

    toggled = Signal(bool)

    def __init__(self, theme: Theme, name: str, title: str, body: QWidget) -> None:
        super().__init__()
        self._theme, self._name, self._title, self._body = theme, name, title, body
        self.heading = QToolButton()
        self.heading.setProperty("kind", "disclosure")
        self.heading.setCheckable(True)
        self.heading.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.heading.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.heading.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.heading.setAccessibleName(title)
        self.set_note("")
        self.setLayout(stack(self.heading, body))
        self.heading.setChecked(window_state().value(f"{_OPEN}/{name}") == "1")
        self._show()
        self.heading.toggled.connect(self._on_toggled)
        theme.changed.connect(self._show)

    @property
    def is_open(self) -> bool:
        """Whether the body is shown."""
        return self.heading.isChecked()

    def set_note(self, note: str) -> None:
        """Show a short text behind the title, for example how many options inside are set."""
        self.heading.setText(f"{self._title} · {note}" if note else self._title)

    def _on_toggled(self, is_open: bool) -> None:
        window_state().setValue(f"{_OPEN}/{self._name}", "1" if is_open else "0")
        self._show()
        self.toggled.emit(is_open)

    def _show(self) -> None:
        self.heading.setIcon(self._theme.icon("chevron" if self.is_open else "chevron-right", "muted"))
        self._body.setVisible(self.is_open)

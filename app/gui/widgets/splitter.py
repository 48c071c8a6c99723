"""Splitters whose sizes are saved between starts."""

from PySide6.QtCore import QByteArray, QSettings, Qt
from PySide6.QtWidgets import QSplitter, QWidget

_GROUP = "splitters"


def saved_splitter(name: str, first: QWidget, second: QWidget, *, sizes: tuple[int, int]) -> QSplitter:
    """A horizontal splitter whose second side grows. `sizes` in pixels apply until the user moves it."""
    made = QSplitter(Qt.Orientation.Horizontal)
    made.setObjectName(name)
    made.setHandleWidth(1)
    made.setChildrenCollapsible(False)
    for side in (first, second):
        made.addWidget(side)
    made.setStretchFactor(0, 0)
    made.setStretchFactor(1, 1)
    made.setSizes(list(sizes))
    return made


def keep_splitters(page: QWidget, settings: QSettings) -> None:
    """Save the splitter sizes of a page."""
    for split in _named(page):
        settings.setValue(f"{_GROUP}/{split.objectName()}", split.saveState())


def restore_splitters(page: QWidget, settings: QSettings) -> None:
    """Restore the splitter sizes of a page."""
    for split in _named(page):
        state = settings.value(f"{_GROUP}/{split.objectName()}")
        if isinstance(state, QByteArray):
            split.restoreState(state)


def _named(page: QWidget) -> list[QSplitter]:
    return [split for split in page.findChildren(QSplitter) if split.objectName()]

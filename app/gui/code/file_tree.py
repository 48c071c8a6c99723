"""The project's files as a tree; a folder is filled when it is opened, so that large projects cost nothing."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QTreeWidget, QTreeWidgetItem, QTreeWidgetItemIterator

from app.gui.theme import Theme

_PATH = Qt.ItemDataRole.UserRole
_FILLED = Qt.ItemDataRole.UserRole + 1
_ICON, _INDENT = 16, 14  # pixels
_TEXTS = frozenset({".md", ".rst", ".txt", ".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".csv"})
_OTHERS = frozenset({".png", ".jpg", ".jpeg", ".svg", ".gif", ".webp", ".pdf", ".zip", ".gguf", ".woff2", ".ttf"})


class FileTree(QTreeWidget):
    """`chosen` tells the path of a file that was pressed or entered."""

    chosen = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._folders: dict[str, tuple[set[str], list[str]]] = {}
        self.setHeaderHidden(True)
        self.setUniformRowHeights(True)
        self.setIconSize(QSize(_ICON, _ICON))
        self.setIndentation(_INDENT)
        theme.changed.connect(self._paint_icons)
        self.setAccessibleName(self.tr("Files of the project"))
        self.itemExpanded.connect(self._fill)
        self.currentItemChanged.connect(lambda item, _: self._choose(item))

    def show_paths(self, paths: Sequence[str]) -> None:
        """Show these files, paths relative to the project with forward slashes."""
        self._folders = {"": (set(), [])}
        for path in paths:
            *parents, _ = PurePosixPath(path).parts
            folder = ""
            for part in parents:
                inner = f"{folder}/{part}" if folder else part
                self._folders[folder][0].add(inner)
                self._folders.setdefault(inner, (set(), []))
                folder = inner
            self._folders[folder][1].append(path)
        self.clear()
        self._add(self.invisibleRootItem(), "")

    def _add(self, parent: QTreeWidgetItem, folder: str) -> None:
        folders, files = self._folders.get(folder, (set(), []))
        for path in [*sorted(folders, key=str.casefold), *sorted(files, key=str.casefold)]:
            name = PurePosixPath(path).name
            item = QTreeWidgetItem(parent, ["".join(char if char.isprintable() else "�" for char in name)])
            item.setData(0, _PATH, path)
            item.setIcon(0, self._theme.icon(self._icon_of(path), "muted"))
            if path in folders:
                item.setChildIndicatorPolicy(QTreeWidgetItem.ChildIndicatorPolicy.ShowIndicator)

    def _icon_of(self, path: str) -> str:
        if path in self._folders:
            return "folder"
        suffix = PurePosixPath(path).suffix.lower()
        if suffix in _TEXTS:
            return "file-text"
        return "file" if not suffix or suffix in _OTHERS else "file-code"

    def _paint_icons(self) -> None:
        """Every icon in the colours that now hold."""
        at = QTreeWidgetItemIterator(self)
        while (item := at.value()) is not None:
            item.setIcon(0, self._theme.icon(self._icon_of(item.data(0, _PATH)), "muted"))
            at += 1

    def _fill(self, item: QTreeWidgetItem) -> None:
        if not item.data(0, _FILLED):
            item.setData(0, _FILLED, 1)
            self._add(item, item.data(0, _PATH))

    def _choose(self, item: QTreeWidgetItem | None) -> None:
        if item is not None and item.data(0, _PATH) not in self._folders:
            self.chosen.emit(item.data(0, _PATH))

"""The files of a project: the tree, and the file that is shown next to it."""

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QTreeWidget, QTreeWidgetItem, QTreeWidgetItemIterator, QWidget

from app.gui.app_context import AppContext
from app.gui.code.coloured import Selected, SourceText, SourceView, coloured_lines, language_of
from app.gui.reasons import error_message
from app.gui.theme import Theme
from app.gui.widgets.basics import ElidedLabel, IconButton, label, row, stack
from app.gui.widgets.splitter import saved_splitter

_TREE, _SOURCE = 180, 520  # default widths in pixels


class FilesPanel(QWidget):
    """File tree and source view. `read` returns a file's text; it runs in the background and may raise."""

    def __init__(self, services: AppContext, read: Callable[[str], str]) -> None:
        super().__init__()
        self._services, self._read = services, read
        self._wanted: str | None = None
        self.tree = FileTree(services.theme)
        self.tree.chosen.connect(self.open)
        self.source = SourceView(services.theme)
        self.heading = ElidedLabel(self.tr("Choose a file"), "strong")
        self.hint = label(self.tr("Select lines, then Explain, Fix, Document or Write tests."), "small", wrap=True)
        shown = QWidget()
        self.fold = IconButton(
            services.theme,
            "sidebar",
            self.tr("Show or hide the list of files"),
            lambda: self.tree.setVisible(self.tree.isHidden()),
        )
        head = row(self.fold, self.heading, spacing=4)
        head.setStretch(1, 1)
        column = stack(head, self.hint, spacing=8, margins=(8, 0, 0, 0))
        column.addWidget(self.source, 1)
        shown.setLayout(column)
        split = saved_splitter("code.files", self.tree, shown, sizes=(_TREE, _SOURCE))
        layout = stack(spacing=0, margins=(8, 8, 8, 8))
        layout.addWidget(split, 1)
        self.setLayout(layout)

    def show_paths(self, paths: list[str]) -> None:
        """Show the files of a project. The open file is reloaded if it still exists."""
        shown = self.source.path
        self.tree.show_paths(paths)
        if shown in paths:
            self.open(shown)
        else:
            self._show(None)

    def open(self, path: str) -> None:
        """Load a file and show it."""
        self._wanted = path

        def work() -> SourceText:
            text = self._read(path).replace("\r\n", "\n").encode("utf-8", "replace").decode("utf-8")
            return SourceText(path, tuple(text.split("\n")), tuple(coloured_lines(text, language_of(path))))

        def done(source: SourceText) -> None:
            if self._wanted == path:
                self._show(source)

        def failed(error: Exception) -> None:
            if self._wanted == path:
                self._show(None)
                self.heading.setText(error_message(error))

        self._services.background.run(work, done, failed, self)

    def selected(self) -> Selected | None:
        """The selected lines, which a task refers to."""
        return self.source.selected()

    def _show(self, source: SourceText | None) -> None:
        self.source.show_source(source)
        self.heading.setText(source.path if source else self.tr("Choose a file"))


_PATH = Qt.ItemDataRole.UserRole
_FILLED = Qt.ItemDataRole.UserRole + 1
_ICON, _INDENT = 16, 14  # pixels
_TEXTS = frozenset({".md", ".rst", ".txt", ".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".csv"})
_OTHERS = frozenset({".png", ".jpg", ".jpeg", ".svg", ".gif", ".webp", ".pdf", ".zip", ".gguf", ".woff2", ".ttf"})


class FileTree(QTreeWidget):
    """The file tree. `chosen` emits the path of a clicked or entered file."""

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
        """Show these files. Paths are relative to the project, with forward slashes."""
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
        """Repaint all icons in the current theme."""
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

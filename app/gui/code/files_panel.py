"""The files of a project: the tree, and the file that is shown next to it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHeaderView, QTreeWidget, QTreeWidgetItem, QTreeWidgetItemIterator, QWidget

from app.code.edits.reviews import InlineHunk
from app.gui.app_context import AppContext
from app.gui.code.source_view import NEXT, PREVIOUS, Selected, SourceText, SourceView, source_text
from app.gui.formatted import plain_tip
from app.gui.reasons import error_message
from app.gui.shortcuts import native_keys
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, button, label, row, stack
from app.gui.widgets.elided import ElidedLabel
from app.gui.widgets.flow import Flow
from app.gui.widgets.splitter import saved_splitter

_TREE, _SOURCE = 180, 520  # default widths in pixels
_MIN_BOTH = 22  # in letters of body text: minimum width to show the list and a file


class FilesPanel(QWidget):
    """File tree and source view. `read` returns a file's text; it runs in the background and may raise.

    `inline` returns the pending edits of a file with this text, `uncommitted` the files that git reports as
    changed.
    """

    editor_wanted = Signal(str, int)  # path, line

    def __init__(
        self,
        services: AppContext,
        read: Callable[[str], str],
        inline: Callable[[str, str], tuple[InlineHunk, ...]],
        uncommitted: Callable[[], frozenset[str]],
    ) -> None:
        super().__init__()
        self._services, self._read, self._inline, self._uncommitted = services, read, inline, uncommitted
        self._changed: frozenset[str] = frozenset()
        self._paths: list[str] = []
        self._pending: Mapping[str, bool] = {}
        self._pending_path: str | None = None
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
        words = self.tr("Open in the editor")
        self.editor = IconButton(services.theme, "external", words, self._open_in_editor)
        self.editor.setEnabled(False)
        head = row(self.fold, self.heading, self.editor, spacing=4, grow=1)
        self.count = label("", "strong", wrap=True)
        previous = self.tr("Previous edit ({keys})").format(keys=native_keys(PREVIOUS))
        following = self.tr("Next edit ({keys})").format(keys=native_keys(NEXT))
        self.edits = Flow()
        for widget in (
            self.count,
            IconButton(services.theme, "up", previous, lambda: self.source.step(-1), steps=True),
            IconButton(services.theme, "down", following, lambda: self.source.step(1), steps=True),
            button(self.tr("Reject all"), lambda: self.source.rejected.emit(list(self.source.hunks))),
            button(self.tr("Accept all"), lambda: self.source.accepted.emit(list(self.source.hunks)), "primary"),
        ):
            self.edits.add(widget)
        self.edits.hide()
        column = stack(head, self.hint, self.edits, spacing=8, margins=(8, 0, 0, 0))
        column.addWidget(self.source, 1)
        shown.setLayout(column)
        split = saved_splitter("code.files", self.tree, shown, sizes=(_TREE, _SOURCE))
        layout = stack(spacing=0, margins=(8, 8, 8, 8))
        layout.addWidget(split, 1)
        self.setLayout(layout)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fold the list away where it would leave too little width for the open file."""
        super().resizeEvent(event)
        self._fit_list()

    def _fit_list(self) -> None:
        is_narrow = self.width() < _MIN_BOTH * self._services.theme.tokens.body and self.source.path is not None
        if is_narrow == self._is_narrow:
            return
        self._is_narrow = is_narrow
        if is_narrow:
            self._was_listed = not self.tree.isHidden()
        self.tree.setVisible(self._was_listed and not is_narrow)

    _is_narrow = False
    _was_listed = True  # whether the list was shown before there was too little width

    def show_paths(self, paths: list[str]) -> None:
        """Show the files of a project. The open file is reloaded if it still exists."""
        self._paths = paths
        self._show_tree()
        self._services.background.run(self._uncommitted, self._show_changed, lambda _: None, self, newest="changed")
        if self._pending_path is not None and (self._pending_path in paths or self._pending_path in self._pending):
            self.open(self._pending_path)
        else:
            self._pending_path = None
            self._show(None)

    def show_pending(self, pending: Mapping[str, bool]) -> None:
        """Mark the files with pending edits; True: the edit creates the file."""
        if pending != self._pending:
            self._pending = pending
            self._show_tree()

    def _show_changed(self, changed: frozenset[str]) -> None:
        if changed != self._changed:
            self._changed = changed
            self._show_tree()

    def _open_in_editor(self) -> None:
        if self.source.path is not None:
            self.editor_wanted.emit(self.source.path, self.source.line)

    def _show_tree(self) -> None:
        new = [path for path, is_new in self._pending.items() if is_new and path not in self._paths]
        marks = dict.fromkeys(
            self._changed & set(self._paths), (_CHANGED, self.tr("changed since the last commit"))
        )
        marks |= dict.fromkeys(self._pending, (_PENDING, self.tr("has edits to review")))
        self.tree.show_paths([*self._paths, *new], marks)

    def open(self, path: str) -> None:
        self._pending_path = path

        def work() -> SourceText:
            read = self._read(path)
            hunks = self._inline(path, read)
            text = read.replace("\r\n", "\n").encode("utf-8", "replace").decode("utf-8")
            return source_text(path, text, hunks)

        def done(source: SourceText) -> None:
            if self._pending_path == path:
                self._show(source)

        def failed(error: Exception) -> None:
            if self._pending_path == path:
                self._show(None)
                self.heading.setText(error_message(error))

        self._services.background.run(work, done, failed, self, newest="file")

    def selected(self) -> Selected | None:
        """The selected lines, which a task refers to."""
        return self.source.selected()

    def _show(self, source: SourceText | None) -> None:
        self.source.show_source(source)
        self.heading.setText(source.path if source else self.tr("Choose a file"))
        hunks = self.source.hunks
        self.editor.setEnabled(source is not None)
        self._fit_list()
        self.edits.setVisible(bool(hunks))
        self.hint.setVisible(not hunks)
        if hunks:
            self.count.setText(self._count_text(hunks))

    def _count_text(self, hunks: Sequence[InlineHunk]) -> str:
        one = len(hunks) == 1
        if not any(hunk.is_written for hunk in hunks):
            words = (
                self.tr("1 proposed edit, not written yet")
                if one
                else self.tr("{n} proposed edits, not written yet")
            )
        elif all(hunk.is_written for hunk in hunks):
            words = self.tr("1 edit by the agent, written") if one else self.tr("{n} edits by the agent, written")
        else:
            words = self.tr("{n} edits to review")
        return words.format(n=len(hunks))


_PATH = Qt.ItemDataRole.UserRole
_FILLED = Qt.ItemDataRole.UserRole + 1
_CHANGED, _PENDING = "M", "●"
_SIGN_COLOURS = {_CHANGED: "warn", _PENDING: "accent"}
_ICON, _INDENT, _NARROWEST = 16, 14, 112  # pixels at the normal text size
_TEXTS = frozenset({".md", ".rst", ".txt", ".toml", ".yaml", ".yml", ".json", ".ini", ".cfg", ".csv"})
_OTHERS = frozenset({".png", ".jpg", ".jpeg", ".svg", ".gif", ".webp", ".pdf", ".zip", ".gguf", ".woff2", ".ttf"})


class FileTree(QTreeWidget):
    """The file tree. `chosen` emits the path of a clicked or entered file."""

    chosen = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._folders: dict[str, tuple[set[str], list[str]]] = {}
        self._paths: list[str] = []
        self._marks: dict[str, tuple[str, str]] = {}
        self._around: dict[str, str] = {}  # folders of marked files, with the sign
        self.setHeaderHidden(True)
        self.setColumnCount(2)
        self.header().setStretchLastSection(False)
        self.header().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self.header().setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        self.setUniformRowHeights(True)
        self._fit_icons()
        theme.changed.connect(self._paint_icons)
        self.setAccessibleName(self.tr("Files of the project"))
        self.itemExpanded.connect(self._fill)
        self.currentItemChanged.connect(lambda item, _: self._choose(item))

    def show_paths(self, paths: Sequence[str], marks: Mapping[str, tuple[str, str]]) -> None:
        """Show these files. Paths are relative to the project, with forward slashes.

        A mark is a symbol and its meaning. Folders around marked files have icons in the same colour. Open folders
        stay open.
        """
        if (list(paths), marks) == (self._paths, self._marks):
            return
        self._paths, self._marks = list(paths), dict(marks)
        self._around = {
            str(parent): sign for path, (sign, _) in marks.items() for parent in PurePosixPath(path).parents
        }
        opened, current = self._open_folders(), self.currentItem()
        selected = current.data(0, _PATH) if current is not None else None
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
        self.blockSignals(True)
        self.clear()
        self._add(self.invisibleRootItem(), "")
        self._restore(opened, selected)
        self.blockSignals(False)

    def _open_folders(self) -> set[str]:
        return {item.data(0, _PATH) for item in self._items() if item.isExpanded()}

    def _restore(self, opened: set[str], selected: str | None) -> None:
        """Open these folders and select this file again."""
        for item in self._items():
            if item.data(0, _PATH) in opened:
                self._fill(item)
                item.setExpanded(True)
        for item in self._items():
            if item.data(0, _PATH) == selected:
                self.setCurrentItem(item)

    def _items(self) -> Iterator[QTreeWidgetItem]:
        at = QTreeWidgetItemIterator(self)
        while (item := at.value()) is not None:
            yield item
            at += 1

    def _add(self, parent: QTreeWidgetItem, folder: str) -> None:
        folders, files = self._folders.get(folder, (set(), []))
        for path in [*sorted(folders, key=str.casefold), *sorted(files, key=str.casefold)]:
            name = PurePosixPath(path).name
            item = QTreeWidgetItem(parent, ["".join(char if char.isprintable() else "�" for char in name)])
            item.setData(0, _PATH, path)
            self._paint(item)
            if path in folders:
                item.setChildIndicatorPolicy(QTreeWidgetItem.ChildIndicatorPolicy.ShowIndicator)

    def _icon_of(self, path: str) -> str:
        if path in self._folders:
            return "folder"
        suffix = PurePosixPath(path).suffix.lower()
        if suffix in _TEXTS:
            return "file-text"
        return "file" if not suffix or suffix in _OTHERS else "file-code"

    def _fit_icons(self) -> None:
        """Give the icons and the indentation the size of the text."""
        side = self._theme.tokens.scaled(_ICON)
        self.header().setMinimumSectionSize(side)
        self.setIconSize(QSize(side, side))
        self.setIndentation(self._theme.tokens.scaled(_INDENT))
        self.setMinimumWidth(
            self._theme.tokens.scaled(_NARROWEST)
        )  # otherwise the names go first in a small window

    def _paint_icons(self) -> None:
        """Repaint all icons in the current theme."""
        self._fit_icons()
        for item in self._items():
            self._paint(item)

    def _paint(self, item: QTreeWidgetItem) -> None:
        path = item.data(0, _PATH)
        sign, why = self._marks.get(path, ("", ""))
        colour = _SIGN_COLOURS.get(sign or self._around.get(path, ""), "muted")
        item.setIcon(0, self._theme.icon(self._icon_of(path), colour))
        item.setText(1, sign)
        item.setToolTip(1, plain_tip(why))
        item.setToolTip(0, plain_tip(f"{path}: {why}" if why else path))
        item.setData(0, Qt.ItemDataRole.AccessibleTextRole, f"{item.text(0)}, {why}" if why else None)

    def _fill(self, item: QTreeWidgetItem) -> None:
        if not item.data(0, _FILLED):
            item.setData(0, _FILLED, 1)
            self._add(item, item.data(0, _PATH))

    def _choose(self, item: QTreeWidgetItem | None) -> None:
        if item is not None and item.data(0, _PATH) not in self._folders:
            self.chosen.emit(item.data(0, _PATH))

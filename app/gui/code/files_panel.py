"""The project's files: a tree, and the file chosen in it."""

from collections.abc import Callable

from PySide6.QtWidgets import QWidget

from app.gui.app_context import Services
from app.gui.code.coloured import coloured_lines, language_of
from app.gui.code.file_tree import FileTree
from app.gui.code.source_view import Selected, SourceText, SourceView
from app.gui.server_errors import error_message
from app.gui.widgets.basics import IconButton, label, row, stack
from app.gui.widgets.elided import ElidedLabel
from app.gui.widgets.splitter import saved_splitter

_TREE, _SOURCE = 180, 520  # pixels, until they are pulled


class FilesPanel(QWidget):
    """`read` gives a file's text; it is called in the background and may raise."""

    def __init__(self, services: Services, read: Callable[[str], str]) -> None:
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
        """Another project, or the same after files came and went: the open file is read again."""
        shown = self.source.path
        self.tree.show_paths(paths)
        if shown in paths:
            self.open(shown)
        else:
            self._show(None)

    def open(self, path: str) -> None:
        """Read a file and show it."""
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
        """What a task is about: the selected lines."""
        return self.source.selected()

    def _show(self, source: SourceText | None) -> None:
        self.source.show_source(source)
        self.heading.setText(source.path if source else self.tr("Choose a file"))

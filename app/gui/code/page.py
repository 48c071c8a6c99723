"""The Code page: open a folder, ask about it, inspect the context, and review and apply edits one by one."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QBoxLayout,
    QCheckBox,
    QFileDialog,
    QStackedWidget,
    QTabWidget,
    QTreeWidget,
    QTreeWidgetItem,
    QTreeWidgetItemIterator,
    QWidget,
)

from app.code.assistant import TASKS
from app.code.context.items import Context, ContextItem
from app.code.edits.session import Proposal
from app.code.errors import GitFailed, UncommittedChanges
from app.db.records import Attachment
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.chat.composer import Composer
from app.gui.chat.prompt_library import PromptLibrary
from app.gui.code.coloured import Selected, SourceText, SourceView, coloured_lines, language_of
from app.gui.code.controller import CodeController
from app.gui.code.review_panel import ReviewPanel
from app.gui.code.transcript import Transcript
from app.gui.reasons import error_message
from app.gui.theme import Theme
from app.gui.widgets.basics import Banner, ElidedLabel, EmptyState, IconButton, button, label, row, rule, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import ComboBox, ConsentCard, Menu, entries_of
from app.gui.widgets.splitter import saved_splitter
from app.tools.consent import ConsentRequest

# Assumed context length if the server does not report one.
_FALLBACK_CONTEXT = 4096
_MAX_PASTED = 20_000
_TALK, _FILES = 400, 800  # default widths in pixels; the files get more space


class CodePage(QWidget):
    """One project, one conversation and one proposal at a time."""

    def __init__(self, services: AppContext) -> None:
        super().__init__()
        self._services = services
        self.controller = CodeController(services, self)
        self._given: list[ContextItem] = []
        self.banner = Banner(services.theme)
        self.folder = label(self.tr("No folder is open"), "muted")
        self.model = ComboBox()
        self.model.setAccessibleName(self.tr("Model"))
        self.model.setMinimumWidth(200)
        self.transcript = Transcript(services.theme)
        self.review = ReviewPanel(services)
        self.files = FilesPanel(services, self.controller.read)
        self.tabs = QTabWidget()
        self.pages = QStackedWidget()
        self.empty = EmptyState(
            self.tr("Work on a project"),
            self.tr(
                "Open a folder to ask about its code and to review proposed edits before they are written. It is "
                "indexed on this computer, and nothing leaves it."
            ),
            self.tr("Open folder"),
        )
        self.hint = EmptyState(
            self.tr("Ask about this project"),
            self.tr(
                "Tessera finds the relevant files and shows them with each answer. Add others with @file, "
                "@folder:path, @symbol:name or @diff, or select lines and choose a task."
            ),
        )
        self.chips = Flow()
        self.used = label("", "small", wrap=True)
        self.composer = Composer(services.theme, services.background)
        self.composer.set_words(self.tr("Ask about the project, or name a @file"), self.tr("Question"))
        self.agent = QCheckBox(self.tr("Work with tools"))
        self.agent.setToolTip(
            self.tr(
                "The model reads and edits files and runs commands by itself. You approve every edit and command."
            )
        )
        self.consent = AgentConsentCard(services.theme)
        self.composer.set_sees(False)
        self.composer.add_tool(self.agent)
        self.prompts = PromptLibrary(services, self.composer, self.model.currentText)
        self.commit = button(self.tr("Commit message"), self._commit)
        self.steps = button(self.tr("Agent steps"), self._show_steps)
        self._build()
        self._connect()
        self._on_models()
        self._on_busy(busy=False)
        for widget in (
            self.folder,
            self.commit,
            self.steps,
        ):  # no folder is open yet, so there is nothing to commit
            widget.hide()

    def _build(self) -> None:
        top = row(
            button(self.tr("Open folder"), self._choose_folder),
            self.folder,
            1,
            self.steps,
            self.commit,
            self.model,
            spacing=8,
            margins=(16, 12, 16, 4),
        )
        tasks = Flow(spacing=6)
        for name, text in (
            ("explain", self.tr("Explain")),
            ("fix", self.tr("Fix")),
            ("document", self.tr("Document")),
            ("tests", self.tr("Write tests")),
            ("output", self.tr("Fix pasted output")),
        ):
            tasks.add(button(text, self._task(name), "quiet"))
        below = stack(self.consent, self.chips, self.used, tasks, self.composer, spacing=8, margins=(16, 4, 16, 16))
        left = QWidget()
        column = stack(self.hint, self.transcript, spacing=0)
        column.setStretch(0, 1)
        column.setStretch(1, 1)
        column.addLayout(below)
        left.setLayout(column)
        self._show_hint(shown=True)  # with a parent: shown without one, it would be a window of its own
        self.tabs.addTab(self.files, self.tr("Files"))
        self.tabs.addTab(self.review, self.tr("Edits"))
        split = saved_splitter("code.sides", left, self.tabs, sizes=(_TALK, _FILES))
        self.pages.addWidget(self.empty)
        self.pages.addWidget(split)
        layout = stack(self.banner, top, rule(), spacing=0)
        layout.addWidget(self.pages, 1)
        self.setLayout(layout)
        self.setAccessibleName(self.tr("Code"))

    def _connect(self) -> None:
        control = self.controller
        self.empty.pressed.connect(self._choose_folder)
        control.opened.connect(self._on_opened)
        self.transcript.begun.connect(lambda: self._show_hint(shown=False))
        control.files_changed.connect(self.files.show_paths)
        control.context_ready.connect(self._show_context)
        control.text_arrived.connect(self.transcript.append)
        control.phase_changed.connect(self.transcript.show_phase)
        control.undo_changed.connect(self.review.undo.setEnabled)
        control.answered.connect(self.transcript.end)
        control.proposed.connect(self._on_proposed)
        control.written.connect(self._on_written)
        control.taken_back.connect(self._on_taken_back)
        control.went_back.connect(self._on_went_back)
        control.steps_changed.connect(self._on_steps)
        control.changes_found.connect(self._on_changes)
        control.failed.connect(self._on_failed)
        control.consent_wanted.connect(self.consent.ask)
        control.answered.connect(self.consent.hide)
        self.consent.decided.connect(control.decide)
        control.busy_changed.connect(lambda busy: self._on_busy(busy=busy))
        self.review.apply_pressed.connect(control.apply)
        self.review.undo_pressed.connect(control.undo)
        self._services.models.changed.connect(self._on_models)
        self.composer.sent.connect(self._on_sent)
        self.composer.stopped.connect(control.stop)
        self.composer.failed.connect(lambda text: self.banner.notify(text, "warn"))
        self.destroyed.connect(control.close_project)

    def _show_hint(self, *, shown: bool) -> None:
        """Show hints until the first request."""
        self.hint.setVisible(shown)
        self.transcript.setVisible(not shown)

    def open_folder(self, folder: Path) -> None:
        """Open a project."""
        self.folder.show()
        self.folder.setText(self.tr("Reading %1").replace("%1", folder.name))
        self.controller.open_folder(folder)

    def stop_answer(self) -> None:
        """Stop the current response or context search."""
        self.controller.stop()

    def _choose_folder(self) -> None:
        chosen = QFileDialog.getExistingDirectory(self, self.tr("Open folder"))
        if chosen:
            self.open_folder(Path(chosen))

    def _on_opened(self, folder: str, num_files: int) -> None:
        self.folder.setText(f"{Path(folder).name} · {formatted.files(num_files)}")
        self.folder.setToolTip(folder)
        self.commit.show()
        self.transcript.clear()
        self._show_hint(shown=True)
        self.review.clear()
        self.pages.setCurrentIndex(1)
        self.tabs.setCurrentWidget(self.files)
        self._show_context(None)
        self._on_busy(busy=False)
        self.composer.editor.setFocus()

    def _on_models(self) -> None:
        wanted = self.model.currentData()
        choices = self._services.models.partners
        if wanted and choices and entries_of(self.model) == [(choice.title, choice.id) for choice in choices]:
            return  # do not refresh the combo box, it may be open
        self.model.clear()
        for choice in choices:
            self.model.addItem(choice.title, choice.id)
        loaded = next((number for number, choice in enumerate(choices) if choice.loaded), 0)
        position = self.model.findData(wanted) if wanted else -1
        self.model.setCurrentIndex(position if position >= 0 else loaded)
        self._on_busy(busy=self.controller.busy)

    def _chosen_model(self) -> tuple[str, int] | None:
        choice = self._services.models.get(self.model.currentData() or "")
        return None if choice is None else (choice.id, choice.n_ctx or _FALLBACK_CONTEXT)

    def _on_sent(self, text: str, attachments: tuple[Attachment, ...]) -> None:
        """Send the text with its attached files."""
        unseen = ", ".join(item.name for item in attachments if not item.text)
        if unseen and not text and not any(item.text for item in attachments):
            self.banner.notify(self._not_read(unseen), "warn")
            return
        self._given += [
            ContextItem(kind="output", title=item.name, text=item.text[:_MAX_PASTED], reason=self.tr("attached"))
            for item in attachments
            if item.text
        ]
        self._submit(text)
        if unseen:
            self.banner.notify(self._not_read(unseen), "warn")

    def _not_read(self, names: str) -> str:
        return self.tr("Images are not supported here: {files} was skipped.").format(files=names)

    def _submit(self, question: str) -> None:
        model = self._chosen_model()
        if model is None or not self.controller.has_project or self.controller.busy:
            return
        self.banner.hide()
        self.transcript.begin(question, self.model.currentText())
        if self.agent.isChecked():
            task = "\n\n".join([*(item.rendered() for item in self._given), question])
            self._show_context(None)
            self.controller.work_as_agent(task, model[0])
        else:
            self.controller.ask(question, *model, given=self._given)
        self._given = []

    def _task(self, name: str) -> Callable[[], None]:
        """Returns a callback that runs a task on the selected lines, else on the clipboard text."""

        def run() -> None:
            selected = self.files.selected() if name != "output" else None
            if selected is not None:
                self._give(selected)
                self._submit(TASKS[name])
                return
            text = QGuiApplication.clipboard().text()[:_MAX_PASTED]
            if not text.strip():
                self.banner.notify(self.tr("Select lines of a file, or copy the code or the output first."))
                return
            kind: Any = "output" if name == "output" else "selection"
            title = self.tr("Output") if name == "output" else self.tr("Selected code")
            self._given = [ContextItem(kind=kind, title=title, text=text, reason=self.tr("pasted"))]
            self._submit(TASKS[name])

        return run

    def _give(self, selected: Selected) -> None:
        title = f"{selected.path}, {self.tr('lines')} {selected.first}-{selected.last}"
        self._given = [
            ContextItem(
                kind="selection",
                title=title,
                text=selected.text[:_MAX_PASTED],
                reason=self.tr("selected"),
                path=selected.path,
                first=selected.first,
                last=selected.last,
                partial=len(selected.text) > _MAX_PASTED,
            )
        ]

    def _commit(self) -> None:
        model = self._chosen_model()
        if model is not None and not self.controller.busy:
            self.transcript.begin(self.tr("Commit message"), self.model.currentText())
            self.controller.suggest_commit(*model)

    def _show_context(self, context: Context | None) -> None:
        self.chips.clear()
        if context is None:
            self.used.setText("")
            return
        for item in context.items:
            chip = button(f"{item.title.split(',')[0]} · {item.num_tokens} ✕", self._dropper(item.key), "quiet")
            chip.setToolTip(f"{item.title}\n{item.reason}\n{self.tr('Press to ask again without it')}")
            chip.setAccessibleName(self.tr("Skip %1").replace("%1", item.title))
            self.chips.add(chip)
        words = self.tr("About %1 of %2 tokens.")
        words = words.replace("%1", str(context.used_tokens)).replace("%2", str(context.budget_tokens))
        asked = [f"{left.what}: {left.reason}" for left in context.left_out if left.what.startswith("@")]
        self.used.setText(" ".join([words, *asked]))

    def _dropper(self, key: str) -> Callable[[], None]:
        def run() -> None:
            if not self.controller.busy:
                self.transcript.begin(self.controller.question, self.model.currentText())
                self.controller.drop(key)

        return run

    def _on_proposed(self, proposal: Proposal) -> None:
        self.review.show_proposal(proposal)
        if self.review.hunks.count():
            self.tabs.setCurrentWidget(self.review)

    def _on_written(self, paths: tuple[str, ...]) -> None:
        self.review.clear()
        undo = (self.tr("Undo"), self.controller.undo)
        self.banner.notify(self.tr("Written: %1").replace("%1", ", ".join(paths)), "ok", undo)

    def _on_steps(self, steps: tuple[str, ...]) -> None:
        self.steps.setVisible(bool(steps))

    def _show_steps(self) -> None:
        menu = Menu(self._services.theme, self)
        menu.add("file-text", self.tr("Show all changes"), self.controller.show_changes)
        for number, words in enumerate(self.controller.steps, 1):
            text = self.tr("Back to before %1: %2").replace("%1", str(number)).replace("%2", words)
            menu.add("left", text.replace("&", "&&"), partial(self.controller.back, number))
        menu.below(self.steps)

    def _on_went_back(self, paths: tuple[str, ...]) -> None:
        self.steps.setVisible(bool(self.controller.steps))
        words = self.tr("Files restored: %1. Your next message to the agent goes on from there.")
        self.banner.notify(words.replace("%1", str(len(paths))), "ok")

    def _on_changes(self, diff: str) -> None:
        if not diff:
            self.banner.notify(self.tr("The agent has changed no file."), "ok")
            return
        self.transcript.begin(self.tr("Changes of the session"))
        self.transcript.append(diff)
        self.transcript.end()

    def _on_taken_back(self, paths: tuple[str, ...]) -> None:
        self.banner.notify(self.tr("Undone: %1").replace("%1", ", ".join(paths)), "ok")

    def _on_failed(self, error: Exception) -> None:
        if isinstance(error, UncommittedChanges | GitFailed):
            chosen = self.review.chosen
            anyway = (self.tr("Write anyway"), lambda: self.controller.apply(chosen, allow_uncommitted=True))
            self.banner.notify(error_message(error), "warn", anyway)
            return
        self.transcript.end()
        self.banner.notify(error_message(error), "bad")

    def _on_busy(self, *, busy: bool) -> None:
        ready = self.controller.has_project and self.model.count() > 0
        self.composer.set_ready(ready)
        self.composer.set_busy(busy)
        self.commit.setEnabled(ready and not busy)


class AgentConsentCard(ConsentCard):
    """Asks for consent: once, or for the same action until the session ends."""

    max_height = 220

    def answers(self) -> QBoxLayout:
        """The buttons, all on the right."""
        self.session = button("", lambda: self._decide("session"))
        return row(1, self.decline, self.session, self.once)

    def ask(self, request: ConsentRequest) -> None:
        """Show a request."""
        words = self.tr("Allow further edits of this file") if request.kind == "edit" else ""
        self.session.setText(words or self.tr("Allow this again"))
        super().ask(request)


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

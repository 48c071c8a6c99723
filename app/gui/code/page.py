"""The Code page: open a folder, ask about it, inspect the context, and review and apply edits one by one."""

from collections.abc import Callable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from PySide6.QtCore import QProcess, QProcessEnvironment
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QCheckBox, QStackedWidget, QTabWidget, QWidget

from app.code.assistant import TASKS
from app.code.context.items import Context, ContextItem
from app.code.edits.session import Proposal
from app.code.edits.types import Hunk
from app.code.errors import GitFailed, UncommittedChanges
from app.code.history import RecentProject, SessionRecord, SessionSummary
from app.code.open_in_editor import editor_command
from app.db.records import Attachment
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.chat.composer import Composer
from app.gui.chat.prompt_library import PromptLibrary
from app.gui.chat.voice import Dictation
from app.gui.code.agent_run import AgentRun
from app.gui.code.controller import CodeController
from app.gui.code.files_panel import FilesPanel
from app.gui.code.history_panel import HistoryPanel, ReadingBar, RecentButton
from app.gui.code.review_panel import ReviewPanel
from app.gui.code.source_view import Selected
from app.gui.code.terminal_panel import TerminalPanel
from app.gui.code.transcript import Transcript
from app.gui.reasons import error_message, known_text
from app.gui.widgets.basics import (
    EmptyState,
    IconButton,
    button,
    holding,
    label,
    row,
    rule,
    stack,
)
from app.gui.widgets.elided import ElidedLabel
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import ComboBox, ConsentCard, Menu, MovingToast, entries_of, file_dialog
from app.gui.widgets.splitter import saved_splitter
from app.settings import given_environment
from app.tools.consent import ConsentRequest

# Assumed context length if the server does not report one.
_FALLBACK_CONTEXT = 4096
_FEWEST_LETTERS = 4  # of the folder's name
_MAX_PASTED = 20_000
_MOST_RECENT = 5  # recent projects on the page without a project
_TALK, _FILES = 400, 800  # default widths in pixels; the files get more space


class CodePage(QWidget):
    """One project, one conversation and one proposal at a time."""

    def __init__(self, services: AppContext) -> None:
        super().__init__()
        self._services = services
        self.controller = control = CodeController(services, self)
        self._attached: list[ContextItem] = []
        self._hinted = True
        self._chosen_session = ""  # the earlier session that is shown or being loaded
        self.banner = MovingToast(services.theme, self)
        self.folder = ElidedLabel(self.tr("No folder is open"), "muted")  # the tooltip shows the whole path
        self.model = ComboBox(self.tr("Model"))
        self.model.setMinimumWidth(200)
        self.transcript = Transcript(services.theme)
        self.review = ReviewPanel(services)
        self.files = FilesPanel(services, control.read, control.inline, control.uncommitted)
        self.history = HistoryPanel(services.theme)
        self.terminal = TerminalPanel(services.theme)
        self.past = Transcript(services.theme)
        self.reading = ReadingBar()
        self.tabs = QTabWidget()
        self.pages = QStackedWidget()
        self.recent = RecentButton(services.theme, self)
        self.new_session = IconButton(services.theme, "plus", self.tr("New session"), self._on_new_session)
        self.empty = EmptyState(
            self.tr("Work on a project"),
            self.tr(
                "Open a folder to ask about its code and to review proposed edits before they are written. It is "
                "indexed on this computer, and nothing leaves it."
            ),
            self.tr("Open folder"),
        )
        self.empty_recent = Flow(spacing=4)
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
        self.dictation = Dictation(services, self.composer, self.banner, self)
        self.composer.add_tool(self.agent)
        self.prompts = PromptLibrary(services, self.composer, self.model.currentText)
        self.commit = button(self.tr("Commit message"), self._commit)
        self.steps = button(self.tr("Agent steps"), self._show_steps)
        self._build()
        self._connect()
        self._on_models()
        self._on_busy(busy=False)
        for widget in (self.folder, self.commit, self.steps, self.new_session):  # no folder is open yet
            widget.hide()
        reopen = services.settings.now.flag("code.reopen")
        self.controller.recent.refresh(self._reopen if reopen else None)

    def _build(self) -> None:
        controls = Flow()
        for widget in (self.new_session, self.steps, self.commit, self.model):
            controls.add(widget)
        self._top = row(
            row(button(self.tr("Open folder"), self._choose_folder), self.recent, spacing=0),
            self.folder,
            controls,
            grow=1,
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
        self.asking = holding(stack(self.chips, self.used, tasks, self.composer))
        below = stack(self.consent, self.reading, self.asking, margins=(16, 4, 16, 16))
        talk = QWidget()
        column = stack(self.hint, self.transcript, self.past, spacing=0)
        for place in range(column.count()):
            column.setStretch(place, 1)
        column.addLayout(below)
        talk.setLayout(column)
        self._show_hint(shown=True)  # has a parent already: without one, it would open as a separate window
        self.tabs.addTab(self.files, self.tr("Files"))
        self.tabs.addTab(self.review, self.tr("Edits"))
        self.tabs.addTab(self.terminal, self.tr("Terminal"))
        self.tabs.addTab(self.history, self.tr("History"))
        split = saved_splitter("code.sides", talk, self.tabs, sizes=(_TALK, _FILES))
        self.empty.add_below(self.empty_recent)
        self.pages.addWidget(self.empty)
        self.pages.addWidget(split)
        layout = stack(self._top, rule(), spacing=0)
        layout.addWidget(self.pages, 1)
        self.pages.currentChanged.connect(lambda page: self.banner.follow(self.tabs if page else self.pages))
        self.setLayout(layout)
        self.setAccessibleName(self.tr("Code"))

    def _connect(self) -> None:
        control = self.controller
        self.empty.pressed.connect(self._choose_folder)
        control.opened.connect(self._on_opened)
        self.transcript.begun.connect(lambda: self._show_hint(shown=False))
        control.recent.changed.connect(self._on_recent)
        self.recent.list_opened.connect(control.recent.refresh)
        self.recent.chosen.connect(self._open_recent)
        self.recent.removed.connect(control.recent.forget)
        control.history_changed.connect(self._on_history)
        control.session_begun.connect(self._on_session)
        control.session_read.connect(self._on_read)
        control.session_deleted.connect(self._on_deleted)
        self.history.chosen.connect(self._on_session_chosen)
        self.history.delete_pressed.connect(self._delete_session)
        self.reading.continued.connect(self._continue)
        self.reading.closed.connect(lambda: self._read(None))
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
        control.refused.connect(lambda reason: self.banner.notify(reason, "warn"))
        control.consent_wanted.connect(self.consent.ask)
        control.answered.connect(self.consent.hide)
        self.consent.decided.connect(control.decide)
        control.busy_changed.connect(lambda busy: self._on_busy(busy=busy))
        self.review.apply_pressed.connect(control.apply)
        self.review.undo_pressed.connect(control.undo)
        self.review.shown_in_file.connect(self._show_in_file)
        self.files.source.accepted.connect(control.accept)
        self.files.source.rejected.connect(control.reject)
        self.files.editor_wanted.connect(self._open_in_editor)
        control.agent_started.connect(self._on_agent)
        control.pending_changed.connect(self._on_pending)
        control.rejected.connect(self._on_rejected)
        self._services.models.changed.connect(self._on_models)
        self._services.theme.changed.connect(self._fit_folder)
        self.composer.sent.connect(self._on_sent)
        self.composer.stopped.connect(control.stop)
        self.composer.failed.connect(lambda text: self.banner.notify(text, "warn"))
        self.destroyed.connect(control.close_project)

    def _show_hint(self, *, shown: bool) -> None:
        """Show hints until the first request. A past session that is being read hides them."""
        self._hinted = shown
        reads = self.reading.session is not None
        self.hint.setVisible(shown and not reads)
        self.transcript.setVisible(not shown and not reads)
        self.past.setVisible(reads)
        self.reading.setVisible(reads)
        self.asking.setVisible(not reads)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_folder()

    def _fit_folder(self) -> None:
        """Give the folder's label what it needs, up to half of the width that is free if the controls wrap."""
        free = self.width() - self._top.minimumSize().width() + self.folder.minimumWidth()
        fewest = _FEWEST_LETTERS * self._services.theme.tokens.body
        self.folder.setMinimumWidth(max(fewest, min(self.folder.sizeHint().width(), free // 2)))

    def open_folder(self, folder: Path, *, resume: bool = False) -> None:
        """Open a project; `resume` continues its last session."""
        self.folder.show()
        self.folder.setText(self.tr("Reading %1").replace("%1", folder.name))
        self._fit_folder()
        self.history.show_sessions((), "")
        self.controller.open_folder(folder, resume=resume)

    def _reopen(self, folder: str) -> None:
        """Open the last project, unless the user has already opened one."""
        if not self.controller.has_project and not self.controller.busy:
            self.open_folder(Path(folder), resume=True)

    def stop_answer(self) -> None:
        """Stop the dictation, else the current response or context search."""
        if self.dictation.active:
            self.dictation.stop()
        else:
            self.controller.stop()

    def _choose_folder(self) -> None:
        file_dialog(self, self.tr("Open folder"), lambda chosen: self.open_folder(Path(chosen)), folder=True)

    def _on_opened(self, folder: str, num_files: int) -> None:
        self.dictation.cancel()
        self.banner.hide()  # its actions belong to the previous project
        self.folder.setText(f"{Path(folder).name} · {formatted.files(num_files)}")
        self.folder.setToolTip(formatted.plain_tip(folder))
        self._fit_folder()
        self.commit.show()
        self.new_session.show()
        self.pages.setCurrentIndex(1)
        self.tabs.setCurrentWidget(self.files)
        self._on_busy(busy=False)
        self.composer.editor.setFocus()

    def _on_recent(self, projects: tuple[tuple[RecentProject, bool], ...]) -> None:
        self.recent.show_projects(projects)
        self.empty_recent.clear()
        for folder in [Path(project.folder) for project, is_missing in projects if not is_missing][:_MOST_RECENT]:
            link = button(folder.name, partial(self.open_folder, folder), "link", tip=str(folder))
            self.empty_recent.add(link)

    def _open_recent(self, folder: str) -> None:
        if Path(folder).is_dir():
            self.open_folder(Path(folder))
            return
        words = self.tr("The folder {folder} no longer exists.").format(folder=folder)
        remove = (self.tr("Remove from the list"), partial(self.controller.recent.forget, folder))
        self.banner.notify(words, "warn", remove)

    def _on_session(self, session: SessionRecord) -> None:
        """Show the current session: a new one, or an earlier one with its requests."""
        self.transcript.clear()
        self._read(None)
        self.terminal.clear()
        self._show_hint(shown=not session.turns)
        for turn in session.turns:
            self.transcript.add_turn(turn.question, turn.model, turn.text)
        self.review.clear()
        self._show_context(None)
        self.controller.refresh_history()

    def _on_history(self, sessions: tuple[SessionSummary, ...]) -> None:
        self.history.show_sessions(sessions, self.controller.session.session_id)

    def _on_new_session(self) -> None:
        self.controller.continue_session(SessionRecord())
        self.composer.editor.setFocus()

    def _on_session_chosen(self, session_id: str) -> None:
        if session_id == self.controller.session.session_id:
            self._read(None)
        else:
            self._chosen_session = session_id
            self.controller.read_session(session_id)

    def _on_read(self, session: SessionRecord) -> None:
        """Show an earlier session, unless the user has chosen another one or gone back meanwhile."""
        if session.session_id == self._chosen_session:
            self._read(session)

    def _read(self, session: SessionRecord | None) -> None:
        """Show an earlier session, read-only; None: show the current one."""
        self._chosen_session = session.session_id if session is not None else ""
        self.past.clear()
        self.reading.show_session(session)
        self._show_hint(shown=self._hinted)
        for turn in session.turns if session is not None else ():
            self.past.add_turn(turn.question, turn.model, turn.text)

    def _continue(self) -> None:
        if self.reading.session is not None:
            self.controller.continue_session(self.reading.session)
            self.composer.editor.setFocus()

    def _delete_session(self, session_id: str) -> None:
        if self.reading.session is not None and self.reading.session.session_id == session_id:
            self._read(None)
        self.controller.delete_session(session_id)

    def _on_deleted(self, session: SessionRecord) -> None:
        undo = (self.tr("Undo"), partial(self.controller.restore_session, session))
        self.banner.notify(self.tr("Session deleted"), "ok", undo)

    def _on_models(self) -> None:
        previous = self.model.currentData()
        choices = self._services.models.partners
        if previous and choices and entries_of(self.model) == [(choice.title, choice.id) for choice in choices]:
            return  # do not refresh the combo box, it may be open
        self.model.clear()
        for choice in choices:
            self.model.addItem(choice.title, choice.id)
        loaded = next((number for number, choice in enumerate(choices) if choice.loaded), 0)
        position = self.model.findData(previous) if previous else -1
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
        self._attached += [
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
        self._begin(question)
        if self.agent.isChecked():
            task = "\n\n".join([*(item.rendered() for item in self._attached), question])
            self._show_context(None)
            self.controller.work_as_agent(task, model[0])
        else:
            self.controller.ask(question, *model, attached=self._attached)
        self._attached = []

    def _begin(self, question: str) -> None:
        """Add a request to the session."""
        model = self.model.currentText()
        self.controller.begin_turn(question, model)
        self.transcript.begin(question, model)

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
            self._attached = [ContextItem(kind=kind, title=title, text=text, reason=self.tr("pasted"))]
            self._submit(TASKS[name])

        return run

    def _give(self, selected: Selected) -> None:
        title = f"{selected.path}, {self.tr('lines')} {selected.first}-{selected.last}"
        self._attached = [
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
            self._begin(self.tr("Commit message"))
            self.controller.suggest_commit(*model)

    def _show_context(self, context: Context | None) -> None:
        self.chips.clear()
        if context is None:
            self.used.setText("")
            return
        for item in context.items:
            tokens = self.tr("{n} tokens").format(n=formatted.whole(item.num_tokens))
            name = self._name_of(item)
            chip = button(f"{name} · {tokens} ✕", self._dropper(item.key), "quiet")
            tip = f"{item.title}\n{known_text(item.reason)}\n{self.tr('Press to ask again without it')}"
            chip.setToolTip(formatted.plain_tip(tip))
            chip.setAccessibleName(self.tr("Skip %1").replace("%1", name))
            self.chips.add(chip)
        words = self.tr("About {used} of {budget} tokens.").format(
            used=formatted.whole(context.used_tokens), budget=formatted.whole(context.budget_tokens)
        )
        omitted = [each for each in context.left_out if each.what.startswith("@")]
        self.used.setText(" ".join([words, *(f"{each.what}: {known_text(each.reason)}" for each in omitted)]))

    def _name_of(self, item: ContextItem) -> str:
        """A short name of an item; its title is in English, as the model reads it."""
        if item.path is None:
            return self.tr("Uncommitted changes") if item.kind == "diff" else item.title
        lines = f" {item.first}–{item.last}" if item.first and item.last else ""
        return f"{PurePosixPath(item.path).name}{lines}"

    def _dropper(self, key: str) -> Callable[[], None]:
        def run() -> None:
            if not self.controller.busy:
                self._begin(self.controller.question)
                self.controller.drop(key)

        return run

    def _on_proposed(self, proposal: Proposal) -> None:
        self.review.show_proposal(proposal)
        if self.review.hunks.count():
            self.tabs.setCurrentWidget(self.review)

    def _on_pending(self, proposal: Proposal, pending: dict[str, bool]) -> None:
        self.review.show_remaining(proposal)
        self.files.show_pending(pending)

    def _on_agent(self, run: AgentRun) -> None:
        run.command_started.connect(self._on_command)
        run.command_wrote.connect(self.terminal.append)
        run.command_ended.connect(self.terminal.end)
        self.terminal.stop_pressed.connect(run.stop_command)

    def _on_command(self, command: str) -> None:
        self.terminal.begin(command)
        self.tabs.setCurrentWidget(self.terminal)

    def _open_in_editor(self, path: str, line: int) -> None:
        """Start the editor of the settings, apart from the window."""
        file = Path(self.folder.toolTip()) / path
        choice = self._services.settings.now.text("code.editor")

        def start(command: tuple[str, ...]) -> None:
            process = QProcess()
            process.setProgram(command[0])
            process.setArguments(list(command[1:]))
            process.setWorkingDirectory(str(Path.home()))
            environment = QProcessEnvironment()
            for name, value in given_environment().items():
                environment.insert(name, value)
            process.setProcessEnvironment(environment)
            started: Any = process.startDetached()  # with or without the process id, depending on the version
            if started[0] if isinstance(started, tuple) else started:
                self.banner.notify(self.tr("{file} opens in the editor").format(file=path), "ok")
            else:
                self.banner.notify(self.tr("{program} could not be started.").format(program=command[0]), "bad")

        self._services.ask(self.banner, lambda: editor_command(choice, file, line), start)

    def _show_in_file(self, path: str) -> None:
        self.files.open(path)
        self.tabs.setCurrentWidget(self.files)
        self.files.source.setFocus()

    def _on_rejected(self, rejected: tuple[tuple[int, Hunk], ...]) -> None:
        if not rejected:
            return
        words = self.tr("Edit rejected") if len(rejected) == 1 else self.tr("{n} edits rejected")
        undo = (self.tr("Undo"), partial(self.controller.offer_again, rejected))
        self.banner.notify(words.format(n=len(rejected)), "ok", undo)

    def _on_written(self, paths: tuple[str, ...]) -> None:
        if not paths:
            return
        undo = (self.tr("Undo"), self.controller.undo)
        self.banner.notify(self.tr("Written: %1").replace("%1", ", ".join(paths)), "ok", undo)

    def _on_steps(self, steps: tuple[str, ...]) -> None:
        self.steps.setVisible(bool(steps))

    def _show_steps(self) -> None:
        menu = Menu(self._services.theme, self)
        agent = self.controller.agent
        menu.add("file-text", self.tr("Show all changes"), self.controller.show_changes)
        for number, words in enumerate(self.controller.steps, 1):
            text = self.tr("Back to before %1: %2").replace("%1", str(number)).replace("%2", words)
            menu.add("left", text, partial(self.controller.back, agent, number))
        menu.below(self.steps)

    def _on_went_back(self, paths: tuple[str, ...]) -> None:
        self.steps.setVisible(bool(self.controller.steps))
        words = self.tr("Files restored: %1. Your next message to the agent continues from there.")
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
            attempted = self.controller.attempted
            anyway = (self.tr("Write anyway"), lambda: self.controller.apply(*attempted, allow_uncommitted=True))
            self.banner.notify(error_message(error), "warn", anyway)
            return
        self.transcript.end()
        self.folder.setVisible(self.controller.has_project)
        self.banner.notify(error_message(error), "bad")

    def _on_busy(self, *, busy: bool) -> None:
        ready = self.controller.has_project and self.model.count() > 0
        self.composer.set_ready(ready)
        self.composer.set_busy(busy)
        self.commit.setEnabled(ready and not busy)
        self.new_session.setEnabled(not busy)
        self.reading.go_on.setEnabled(not busy)


class AgentConsentCard(ConsentCard):
    """Asks for consent: once, or for the same action until the session ends."""

    max_height = 220

    def answers(self) -> QBoxLayout:
        self.session = button("", lambda: self._decide("session"))
        return row(1, self.decline, self.session, self.once)

    def ask(self, request: ConsentRequest) -> None:
        words = self.tr("Allow further edits of this file") if request.kind == "edit" else ""
        self.session.setText(words or self.tr("Allow this again"))
        super().ask(request)

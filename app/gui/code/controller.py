"""The page's state: an opened project, a conversation, a proposal. Everything slow runs in the background."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal, SignalInstance

from app.client import Answer, chat_body
from app.code.assistant import Conversation
from app.code.context.items import Context, ContextItem
from app.code.edits.session import Proposal
from app.code.errors import FileMissing
from app.code.project import Project
from app.gui.app_context import Services
from app.gui.background import Job, StreamJob
from app.gui.code.agent import AgentRun
from app.tools.consent import Decision
from devices.errors import InputFault
from engine.api.chat import Usage


class CodeController(QObject):
    """One project at a time. Signals carry immutable values."""

    opened = Signal(str, int)
    files_changed = Signal(list)
    context_ready = Signal(object)
    text_arrived = Signal(str)
    phase_changed = Signal(object)
    undo_changed = Signal(bool)  # whether there are edits to take back
    answered = Signal()
    proposed = Signal(object)
    written = Signal(object)
    taken_back = Signal(object)
    failed = Signal(object)
    busy_changed = Signal(bool)
    consent_wanted = Signal(object)

    def __init__(self, services: Services, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._services = services
        # The project's databases take one caller at a time.
        self._lock = threading.Lock()
        self._project: Project | None = None
        self._talk: Conversation | None = None
        self._proposal: Proposal | None = None
        self._assembling: Job | None = None  # the context of a question
        self._stream: StreamJob | None = None
        self._run_of_agent: AgentRun | None = None
        self._answer: list[Answer] = []
        self.question = ""
        self.context: Context | None = None
        self._given: tuple[ContextItem, ...] = ()
        self._excluded: frozenset[str] = frozenset()
        self.busy = False
        services.background.at_close(self._end_agent)

    @property
    def has_project(self) -> bool:
        """A folder is open."""
        return self._project is not None

    def open_folder(self, folder: Path) -> None:
        """Open a project and bring its index up to date; the one before is closed."""
        self.stop()
        old = self._project
        self._project = self._talk = self._proposal = self.context = None

        def work() -> tuple[Project, list[str], bool]:
            with self._lock:
                if old is not None:
                    old.close()
                project = Project(folder)
                project.index.refresh()
                return project, project.index.database.paths(), project.edits.can_undo

        def done(result: tuple[Project, list[str], bool]) -> None:
            self._project, paths, can_undo = result
            self.undo_changed.emit(can_undo)
            self.opened.emit(str(self._project.workspace.root), len(paths))
            self.files_changed.emit(paths)

        self._run(work, done)

    def read(self, path: str) -> str:
        """The text of one of the project's files; for a worker thread.

        Raises: PathRefused, FileMissing, NotText.
        """
        project = self._project
        if project is None:
            raise FileMissing(path)
        return project.workspace.read(path).text

    def close_project(self) -> None:
        """Let go of the project; waits for work under way on it."""
        self.stop()
        with self._lock:
            if self._project is not None:
                self._project.close()
            self._project = self._talk = self._proposal = None

    def ask(self, question: str, model: str, n_ctx: int, given: Sequence[ContextItem] = ()) -> None:
        """Assemble the context, show it, and ask."""
        if self._project is None or self.busy:
            return
        if self._talk is None or self._talk.model != model:
            self._talk = Conversation(self._project, model, n_ctx)
        self.question, self._given, self._excluded = question, tuple(given), frozenset()
        self._assemble()

    def drop(self, key: str) -> None:
        """Ask the last question again without one piece of its context."""
        if self._talk is None or self.busy or not self.question:
            return
        self._excluded |= {key}
        if len(self._talk.messages) > 2:  # noqa: PLR2004  # the system prompt, then question and answer
            del self._talk.messages[-2:]
        self._assemble()

    def _assemble(self) -> None:
        talk = self._talk
        assert talk is not None

        def work() -> Context:
            with self._lock:
                return talk.context_for(self.question, self._given, self._excluded)

        self._assembling = self._run(work, self._send)

    def _send(self, context: Context) -> None:
        self._assembling = None
        talk = self._talk
        if talk is None:
            return
        self.context = context
        self.context_ready.emit(context)
        asked = talk.request(self.question, context)
        body = chat_body(talk.model, asked, talk.options)
        self._start_stream(body, lambda text, usage: self._on_answered(asked, text, usage))

    def _on_answered(self, asked: list[dict[str, Any]], text: str, usage: Usage | None) -> None:
        talk = self._talk
        if talk is None:
            return
        talk.keep(asked, text, usage)
        self.answered.emit()

        def work() -> Proposal:
            with self._lock:
                return talk.proposal()

        def done(proposal: Proposal) -> None:
            self._proposal = proposal
            self.proposed.emit(proposal)

        self._run(work, done)

    def suggest_commit(self, model: str, n_ctx: int) -> None:
        """Stream a commit message for the uncommitted changes; nothing is committed."""
        project = self._project
        if project is None or self.busy:
            return
        talk = Conversation(project, model, n_ctx)

        def work() -> list[dict[str, Any]] | None:
            with self._lock:
                return talk.commit_messages()

        def done(messages: list[dict[str, Any]] | None) -> None:
            if messages is None:
                self.failed.emit(InputFault(self.tr("There are no uncommitted changes, or no git repository.")))
            else:
                self._start_stream(chat_body(model, messages, {}), lambda _text, _usage: self.answered.emit())

        self._run(work, done)

    def apply(self, chosen: Sequence[int], *, allow_uncommitted: bool = False) -> None:
        """Write the chosen edits."""
        project, proposal = self._project, self._proposal
        if project is None or proposal is None or not chosen:
            return

        def write() -> tuple[str, ...]:
            label = self.question[:80]
            return project.edits.apply(proposal, chosen, label=label, allow_uncommitted=allow_uncommitted)

        self._write(project, write, self.written)

    def undo(self) -> None:
        """Take the last applied edits back."""
        if self._project is not None:
            self._write(self._project, self._project.edits.undo, self.taken_back)

    def _write(self, project: Project, write: Callable[[], tuple[str, ...]], signal: SignalInstance) -> None:
        """Change files, tell the index, and say through `signal` which they were."""

        def work() -> tuple[tuple[str, ...], list[str], bool]:
            with self._lock:
                touched = write()
                project.index.update(touched)
                return touched, project.index.database.paths(), project.edits.can_undo

        def done(result: tuple[tuple[str, ...], list[str], bool]) -> None:
            touched, paths, can_undo = result
            self.undo_changed.emit(can_undo)
            signal.emit(touched)
            self.files_changed.emit(paths)

        self._run(work, done)

    def work_as_agent(self, task: str, model: str) -> None:
        """Let the model work on a task with tools; each action is asked through `consent_wanted`."""
        if self._project is None or self.busy:
            return
        run = AgentRun(self._services, self._project, self._lock, self)
        self._run_of_agent = run
        run.shown.connect(self.text_arrived)
        run.phase_changed.connect(self.phase_changed)
        run.consent_wanted.connect(self.consent_wanted)

        def over() -> None:
            self._run_of_agent = None
            run.deleteLater()
            self._set_busy(False)
            self.answered.emit()

        def failed(error: Exception) -> None:
            over()
            self.failed.emit(error)

        run.ended.connect(lambda _: over())
        run.failed.connect(failed)
        self._set_busy(True)
        run.start(task, model)

    def decide(self, decision: Decision) -> None:
        """The person's answer to what the agent wants to do."""
        if self._run_of_agent is not None:
            self._run_of_agent.decide(decision)

    def stop(self) -> None:
        """End the answer or the agent under way; what came of an answer is not kept in the conversation."""
        self._end_agent()
        if self._assembling is not None:
            self._assembling.cancel()
            self._assembling = None
            self._set_busy(False)
            self.answered.emit()
        if self._stream is not None:
            self._stream.cancel()
            self._stream.deleteLater()
            self._stream = None
            self._set_busy(False)
            self.answered.emit()

    def _end_agent(self) -> None:
        """Its worker is waited for at the end: it must not wait for a person who is gone."""
        if self._run_of_agent is not None:
            self._run_of_agent.cancel()

    def _start_stream(self, body: dict[str, Any], on_done: Callable[[str, Usage | None], None]) -> None:
        self._answer = []
        self._set_busy(True)

        def values(items: list[Answer]) -> None:
            self._answer += items
            text = "".join(item.text for item in items)
            phase = next((item.phase for item in reversed(items) if item.phase is not None), None)
            if phase is not None:
                self.phase_changed.emit(phase)
            if text:
                self.text_arrived.emit(text)

        def done(_: object) -> None:
            self._stream = None
            self._set_busy(False)
            usage = next((item.facts.usage for item in self._answer if item.facts.usage), None)
            on_done("".join(item.text for item in self._answer), usage)

        def error(problem: Exception) -> None:
            self._stream = None
            self._set_busy(False)
            self.answered.emit()
            self.failed.emit(problem)

        api = self._services.api
        self._stream = self._services.background.stream(lambda: api.answer(body), values, done, error, self)

    def _run(self, work: Callable[[], Any], on_done: Callable[[Any], None]) -> Job:
        self._set_busy(True)

        def done(result: Any) -> None:
            self._set_busy(False)
            on_done(result)

        def error(problem: Exception) -> None:
            self._assembling = None
            self._set_busy(False)
            self.failed.emit(problem)

        return self._services.background.run(work, done, error, self)

    def _set_busy(self, busy: bool) -> None:
        if busy != self.busy:
            self.busy = busy
            with suppress(RuntimeError):
                self.busy_changed.emit(busy)

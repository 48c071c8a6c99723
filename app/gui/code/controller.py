"""State of the Code page: project, conversation and proposal. Slow work runs in the background."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import apsw
from PySide6.QtCore import QObject, Signal, SignalInstance

from app.client import ChatDelta, chat_body
from app.code.agent.loop import Agent
from app.code.agent.types import Ended
from app.code.assistant import Conversation
from app.code.context.items import Context, ContextItem
from app.code.edits.journal import FileChange
from app.code.edits.reviews import NO_EDITS, EditReviews, InlineHunk
from app.code.edits.session import Proposal
from app.code.errors import FileMissing, NoSuchSession
from app.code.history import SessionLog, SessionRecord, Sessions
from app.code.project import Project
from app.gui.app_context import AppContext
from app.gui.background import Job, StreamJob
from app.gui.code.agent_run import AgentRun, fenced, step_lines
from app.gui.code.history_panel import RecentList
from app.tools.consent import Decision
from devices.errors import InputFault
from engine.api.chat import Usage

log = logging.getLogger(__name__)


class CodeController(QObject):
    """Controls one project at a time. Signals carry immutable values."""

    opened = Signal(str, int)
    files_changed = Signal(list)
    context_ready = Signal(object)
    text_arrived = Signal(str)
    phase_changed = Signal(object)
    undo_changed = Signal(bool)  # whether there are edits to undo
    answered = Signal()
    proposed = Signal(object)  # the edits of an answer
    pending_changed = Signal(object, object)  # edits left of the answer; files with pending edits, True: to be made
    rejected = Signal(object)  # edits of the answer, for `offer_again`
    written = Signal(object)
    taken_back = Signal(object)
    went_back = Signal(object)
    steps_changed = Signal(object)
    changes_found = Signal(str)
    failed = Signal(object)
    refused = Signal(str)  # why files are not changed now
    busy_changed = Signal(bool)
    consent_wanted = Signal(object)
    agent_started = Signal(object)  # the run, which shows its commands
    history_changed = Signal(object)  # the summaries of the project's sessions
    session_begun = Signal(object)  # the record of the current session, empty for a new one
    session_read = Signal(object)  # the record of a session to show
    session_deleted = Signal(object)  # carries the session's record

    def __init__(self, services: AppContext, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._services = services
        # The project's databases are not thread-safe.
        self._lock = threading.Lock()
        self._project: Project | None = None
        self._talk: Conversation | None = None
        self._reviews: EditReviews | None = None
        self.attempted: tuple[Proposal, tuple[int, ...]] = NO_EDITS, ()  # last applied, or refused
        self._assembling: Job | None = None  # assembles the context of a request
        self._next_folder: Callable[[], None] | None = None  # opens the folder that was chosen while something ran
        self._stream: StreamJob | None = None
        self._run_of_agent: AgentRun | None = None
        self.agent: Agent | None = None  # agent of the last task; it continues after `back`
        self._is_back = False
        self.recent = RecentList(services.background, self)
        self.recent.failed.connect(self.failed)
        self._log = SessionLog()
        self._answer: list[ChatDelta] = []
        self.question = ""
        self.context: Context | None = None
        self._attached: tuple[ContextItem, ...] = ()
        self._excluded: frozenset[str] = frozenset()
        self.busy = False
        self.text_arrived.connect(self._log.add_text)
        self.answered.connect(self._end_turn)
        self._is_closed = False
        services.background.at_close(self._on_close)

    @property
    def session(self) -> SessionRecord:
        """The current session."""
        return self._log.record

    @property
    def has_project(self) -> bool:
        """Whether a folder is open."""
        return self._project is not None

    def open_folder(self, folder: Path, *, resume: bool = False) -> None:
        """Open a project instead of the earlier one; `resume` continues its last session.

        Running work ends first, because its results belong to the earlier project.
        """
        self.stop()
        if self.busy:
            self._next_folder = partial(self.open_folder, folder, resume=resume)
            return
        old = self._project
        self._project = self._talk = self._reviews = self.context = None
        self._begin_session(SessionRecord())

        def work() -> tuple[Project, list[str], bool, SessionRecord | None]:
            with self._lock:
                if old is not None:
                    old.close()
                project = Project(folder)
                project.index.refresh()
                paths, can_undo = project.index.database.paths(), project.edits.can_undo
            with suppress(OSError):
                self.recent.note(project.workspace.root)
            last = None
            with suppress(apsw.Error, ValueError, NoSuchSession):  # a damaged history; its list shows the reason
                last = project.sessions.last() if resume else None
            return project, paths, can_undo, last

        def done(result: tuple[Project, list[str], bool, SessionRecord | None]) -> None:
            self._project, paths, can_undo, session = result
            self._reviews = EditReviews(self._project.edits, self._project.workspace)
            self._project.edits.on_written = self._note_written
            self.undo_changed.emit(can_undo)
            self.opened.emit(str(self._project.workspace.root), len(paths))
            self.files_changed.emit(paths)
            if session is not None:
                self._begin_session(session)
            self.recent.refresh()
            self.refresh_history()

        self._run(work, done)

    def _open_next(self) -> None:
        """Open the folder that was chosen while something ran."""
        open_next, self._next_folder = self._next_folder, None
        if open_next is not None and not self._is_closed:
            open_next()

    def refresh_history(self) -> None:
        """Read the list of the project's sessions."""
        self._ask_sessions(lambda sessions: sessions.all(), self.history_changed.emit, newest="history")

    def read_session(self, session_id: str) -> None:
        """Load a session and emit it through `session_read`."""
        self._ask_sessions(lambda sessions: sessions.load(session_id), self.session_read.emit)

    def restore_session(self, session: SessionRecord) -> None:
        """Store a deleted session again."""
        self._ask_sessions(lambda sessions: sessions.save(session), lambda _: self.refresh_history())

    def _ask_sessions(
        self, work: Callable[[Sessions], Any], on_done: Callable[[Any], object], newest: str = ""
    ) -> None:
        project = self._project
        if project is None or self._is_closed:
            return

        def done(result: Any) -> None:
            if project is self._project:
                on_done(result)

        self._services.background.run(lambda: work(project.sessions), done, self.failed.emit, self, newest)

    def continue_session(self, session: SessionRecord) -> None:
        """Continue an earlier session, whose messages the model gets, or begin a new one."""
        if not self.busy:
            self._begin_session(session)

    def _begin_session(self, session: SessionRecord) -> None:
        self._end_turn()
        self._log.record = session
        self._talk = self.context = None
        if self._reviews is not None:
            self._reviews.clear()
        self.pending_changed.emit(NO_EDITS, {})
        self.question, self.agent, self._is_back = "", None, False
        self.steps_changed.emit(())
        self.session_begun.emit(session)

    def delete_session(self, session_id: str) -> None:
        """Delete a session; `restore_session` undoes that."""
        if session_id == self.session.session_id:
            if self.busy:
                return
            self._begin_session(SessionRecord())

        def done(session: SessionRecord) -> None:
            self.refresh_history()
            self.session_deleted.emit(session)

        self._ask_sessions(lambda sessions: sessions.delete(session_id), done)

    def _on_close(self) -> None:
        """Save what no worker has saved yet: queued work is dropped now."""
        self._end_agent()
        self._is_closed = True
        self._end_turn()
        if self._log.has_unsaved:
            self._save_session()

    def begin_turn(self, question: str, model: str) -> None:
        """Record a request for the session, with the name of the model that answers."""
        self._end_turn()
        self._log.begin_turn(question, model)

    def _end_turn(self) -> None:
        """Add the answered request to the session, and save it."""
        if self._log.end_turn():
            if self._talk is not None:
                self.session.messages = list(self._talk.messages)
            self._save_session()

    def _note_written(self, changes: tuple[FileChange, ...]) -> None:
        """Record which files the session changed. Worker thread."""
        if self._reviews is not None:
            self._reviews.note_written(changes)
        self.session.changed_files += dict.fromkeys(change.path for change in changes)

    def _save_session(self) -> None:
        if self._project is None or not self.session.turns:
            return
        save = self._log.save(self._project.sessions)
        if self._is_closed:
            try:
                save()
            except (apsw.Error, OSError) as error:
                log.warning("the session could not be saved: %s", error)
            return
        self._services.background.run(save, lambda _: self.refresh_history(), self.failed.emit, self)

    def read(self, path: str) -> str:
        """The text of a project file. Worker thread only. Raises: PathRefused, FileMissing, NotText."""
        project, reviews = self._project, self._reviews
        if project is None:
            raise FileMissing(path)
        try:
            return project.workspace.read(path).text
        except FileMissing:
            if reviews is not None and reviews.paths.get(path):  # an edit would create it
                return ""
            raise

    def uncommitted(self) -> frozenset[str]:
        """Files that git reports as changed; none without git. Worker thread only."""
        return self._project.changed_files() if self._project is not None else frozenset()

    def inline(self, path: str, text: str) -> tuple[InlineHunk, ...]:
        """The pending edits of a file with this text. Worker thread only."""
        return self._reviews.hunks(path, text) if self._reviews is not None else ()

    def close_project(self) -> None:
        """Close the project after waiting for running work on it."""
        self.stop()
        with self._lock:
            if self._project is not None:
                self._project.close()
            self._project = self._talk = self._reviews = None

    def ask(self, question: str, model: str, n_ctx: int, attached: Sequence[ContextItem] = ()) -> None:
        """Assemble the context, show it, and send the request."""
        if self._project is None or self.busy:
            return
        if self._talk is None or self._talk.model != model:
            self._talk = Conversation(self._project, model, n_ctx)
            if self.session.messages:
                self._talk.messages = list(self.session.messages)
        self.question, self._attached, self._excluded = question, tuple(attached), frozenset()
        self._assemble()

    def drop(self, key: str) -> None:
        """Send the last request again without one context item."""
        if self._talk is None or self.busy or not self.question:
            return
        self._excluded |= {key}
        if len(self._talk.messages) > 2:  # noqa: PLR2004  # system prompt, then request and response
            del self._talk.messages[-2:]
        self._assemble()

    def _assemble(self) -> None:
        talk = self._talk
        assert talk is not None

        def work() -> Context:
            with self._lock:
                return talk.context_for(self.question, self._attached, self._excluded)

        self._assembling = self._run(work, self._send)

    def _send(self, context: Context) -> None:
        talk, self._assembling = self._talk, None
        if talk is None:
            return
        self.context = context
        self.context_ready.emit(context)
        messages = talk.request(self.question, context)
        body = chat_body(talk.model, messages, talk.options)
        self._start_stream(body, lambda text, usage: self._on_answered(messages, text, usage))

    def _on_answered(self, messages: list[dict[str, Any]], text: str, usage: Usage | None) -> None:
        talk, reviews = self._talk, self._reviews
        if talk is None or reviews is None:
            return
        is_cut = any(item.facts.finish_reason == "length" for item in self._answer)
        talk.keep(messages, text, usage, is_cut=is_cut)
        self.answered.emit()

        def work() -> Proposal:
            with self._lock:
                reviews.offer(talk.proposal())
                return reviews.proposal

        def done(proposal: Proposal) -> None:
            self.proposed.emit(proposal)
            self.refresh_pending()

        self._run(work, done)

    def refresh_pending(self, *, relocate: bool = False) -> None:
        """Show the pending edits. `relocate` places them in the files as they are now."""
        project, reviews = self._project, self._reviews
        if project is None or reviews is None or self._is_closed:
            return

        def work() -> tuple[list[str], Proposal, dict[str, bool], bool]:
            with self._lock:
                (reviews.locate_again if relocate else reviews.refresh)()
                return project.index.database.paths(), reviews.proposal, reviews.paths, project.edits.can_undo

        def done(result: tuple[list[str], Proposal, dict[str, bool], bool]) -> None:
            paths, proposal, pending, can_undo = result
            if reviews is self._reviews:
                self.undo_changed.emit(can_undo)
                self.pending_changed.emit(proposal, pending)
                self.files_changed.emit(paths)

        self._services.background.run(work, done, self.failed.emit, self, newest="pending")

    def suggest_commit(self, model: str, n_ctx: int) -> None:
        """Stream a commit message for the uncommitted changes. Nothing is committed."""
        project = self._project
        if project is None or self.busy:
            return
        talk = Conversation(project, model, n_ctx)

        def work() -> list[dict[str, Any]] | None:
            with self._lock:
                return talk.commit_messages()

        def done(messages: list[dict[str, Any]] | None) -> None:
            self._assembling = None
            if messages is None:
                self.failed.emit(InputFault(self.tr("There are no uncommitted changes, or no git repository.")))
            else:
                self._start_stream(chat_body(model, messages, {}), lambda _text, _usage: self.answered.emit())

        self._assembling = self._run(work, done)

    def apply(self, shown: Proposal, chosen: Sequence[int], *, allow_uncommitted: bool = False) -> None:
        """Write the chosen edits of the proposal that was shown; nothing if another one is pending by now."""
        project, reviews, label = self._project, self._reviews, self.question[:80]
        if project is None or reviews is None or not chosen or not self._may_write():
            return
        self.attempted = shown, tuple(chosen)

        def write() -> tuple[str, ...]:
            return reviews.apply(chosen, label, allow_uncommitted=allow_uncommitted, shown=shown)

        self._write(project, write, self.written)

    def _may_write(self) -> bool:
        """Return True if files may be changed now. While an answer or an agent runs, show why not."""
        if self._stream is not None or self._assembling is not None or self._run_of_agent is not None:
            self.refused.emit(
                self.tr("Files cannot be changed while an answer runs. Stop it, or wait for its end.")
            )
            return False
        return not self.busy  # a second click while the first one is carried out

    def accept(self, hunks: Sequence[InlineHunk]) -> None:
        """Accept pending edits of one file: write those of the answer, keep those of the agent."""
        if self._reviews is not None:
            self.apply(self._reviews.proposal, self._reviews.still_pending(hunks))
        if written := [hunk for hunk in hunks if hunk.is_written]:
            self._decide(lambda reviews: reviews.keep(written), lambda _: None)

    def reject(self, hunks: Sequence[InlineHunk]) -> None:
        """Reject pending edits of one file: drop those of the answer, revert those of the agent."""
        project, reviews = self._project, self._reviews
        written = [hunk for hunk in hunks if hunk.is_written]
        if len(written) < len(hunks):
            self._decide(lambda reviews: reviews.dismiss(reviews.still_pending(hunks)), self.rejected.emit)
        if written and project is not None and reviews is not None and self._may_write():
            self._write(project, lambda: reviews.take_back(written), self.written)

    def offer_again(self, rejected: Any) -> None:
        """Offer edits again that were rejected."""
        self._decide(lambda reviews: reviews.offer_again(rejected), lambda _: None)

    def _decide(self, decide: Callable[[EditReviews], Any], then: Callable[[Any], object]) -> None:
        """A decision that changes no file."""
        reviews = self._reviews
        if reviews is None:
            return

        def work() -> Any:
            with self._lock:
                return decide(reviews)

        def done(result: Any) -> None:
            if reviews is self._reviews:
                then(result)
                self.refresh_pending()

        self._services.background.run(work, done, self.failed.emit, self)

    def undo(self) -> None:
        """Undo the last applied edits."""
        project, reviews = self._project, self._reviews
        if project is None or reviews is None or not self._may_write():
            return

        def write() -> tuple[str, ...]:
            undone = reviews.undo()
            for path in set(undone) & set(self.session.changed_files):  # others are of an earlier session
                self.session.changed_files.remove(path)
            return undone

        self._write(project, write, self.taken_back)

    def _write(self, project: Project, write: Callable[[], tuple[str, ...]], signal: SignalInstance) -> None:
        """Change files, update the index, and emit the changed paths through `signal`."""

        def work() -> tuple[tuple[str, ...], list[str], bool]:
            with self._lock:
                touched = write()
                project.index.update(touched)
                return touched, project.index.database.paths(), project.edits.can_undo

        def done(result: tuple[tuple[str, ...], list[str], bool]) -> None:
            touched, paths, can_undo = result
            self._save_session()
            self.undo_changed.emit(can_undo)
            signal.emit(touched)
            self.files_changed.emit(paths)
            self.refresh_pending()

        self._run(work, done)

    def work_as_agent(self, task: str, model: str) -> None:
        """Let the model work on a task with tools. Each action needs consent through `consent_wanted`."""
        if self._project is None or self.busy:
            return
        run = AgentRun(self._services, self._project, self._lock, self)
        earlier, self._is_back = (self.agent if self._is_back else None), False
        self._run_of_agent = run
        run.shown.connect(self.text_arrived)
        run.phase_changed.connect(self.phase_changed)
        run.consent_wanted.connect(self.consent_wanted)

        if self._reviews is not None:
            self._reviews.is_by_agent = True

        def over(ended: Ended | None = None) -> None:
            self._run_of_agent = None
            if self._reviews is not None:
                self._reviews.is_by_agent = False
            self.agent = run.agent
            self._log.set_text(run.text)
            # Only a complete conversation can continue: a model's template may refuse calls without results.
            if run.agent is not None and ended is not None and ended.reason == "answered":
                self.session.agent_messages = list(run.agent.messages)
            run.deleteLater()
            self._set_busy(False)
            self.steps_changed.emit(self.steps)
            self.answered.emit()
            self.refresh_pending(relocate=True)
            self._open_next()

        def failed(error: Exception) -> None:
            self.failed.emit(error)
            over()

        run.ended.connect(over)
        run.failed.connect(failed)
        self._set_busy(True)
        self.agent_started.emit(run)
        run.start(task, model, earlier, self.session.agent_messages)

    @property
    def steps(self) -> tuple[str, ...]:
        """The tool calls of the agent's session, one line each."""
        return step_lines(self.agent)

    def back(self, agent: Agent | None, number: int) -> None:
        """Restore files and conversation to before a step of the last agent; its next task continues there."""
        project = self._project
        if agent is None or agent is not self.agent or project is None or not self._may_write():
            return
        self._is_back = True

        def restore() -> tuple[str, ...]:
            restored = agent.back(number)
            if self._reviews is not None:
                self._reviews.locate_again()
            return (*restored.written, *restored.deleted)

        self._write(project, restore, self.went_back)

    def show_changes(self) -> None:
        """Emit the diff of the agent's whole session through `changes_found`."""
        agent = self.agent
        if agent is None or self.busy:
            return

        def work() -> str:
            with self._lock:
                return agent.changes()

        self._run(work, lambda diff: self.changes_found.emit(f"~~~~diff\n{fenced(diff)}\n~~~~" if diff else ""))

    def decide(self, decision: Decision) -> None:
        """Pass on the user's decision about the agent's request."""
        if self._run_of_agent is not None:
            self._run_of_agent.decide(decision)

    def stop(self) -> None:
        """Stop the current response or agent. A stopped response is not added to the conversation."""
        self._end_agent()
        job, self._assembling, self._stream = self._stream or self._assembling, None, None
        if job is not None:
            job.cancel()
            job.deleteLater()
            self._set_busy(False)
            self.answered.emit()

    def _end_agent(self) -> None:
        """Cancel the agent. `close` waits for its worker, which must not wait for a decision."""
        if self._run_of_agent is not None:
            self._run_of_agent.cancel()

    def _start_stream(self, body: dict[str, Any], on_done: Callable[[str, Usage | None], None]) -> None:
        self._answer = []
        self._set_busy(True)

        def values(items: list[ChatDelta]) -> None:
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
            self._open_next()

        def error(problem: Exception) -> None:
            self._assembling = None
            self._set_busy(False)
            self.failed.emit(problem)
            self._open_next()

        return self._services.background.run(work, done, error, self)

    def _set_busy(self, busy: bool) -> None:
        if busy != self.busy:
            self.busy = busy
            with suppress(RuntimeError):
                self.busy_changed.emit(busy)

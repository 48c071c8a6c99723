"""State of the Code page: project, conversation and proposal. Slow work runs in the background."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal, SignalInstance

from app.client import AnswerStream, ChatDelta, Routes, chat_body
from app.code.agent.checkpoints import Checkpoints
from app.code.agent.loop import Agent
from app.code.agent.models import ServerModel
from app.code.agent.tools import Toolbox
from app.code.agent.transcript import Transcript
from app.code.agent.types import AgentEvent, AssistantTextEvent, Edited, Ended, Planned, Printed
from app.code.assistant import Conversation
from app.code.context.items import Context, ContextItem
from app.code.edits.session import Proposal
from app.code.errors import FileMissing
from app.code.project import Project
from app.generation_phase import GenerationPhase
from app.gui.app_context import AppContext
from app.gui.background import Job, StreamJob
from app.tools.consent import Consent, ConsentRequest, Decision
from app.tools.loop import ToolCallEvent, ToolResultEvent
from app.tools.types import shown_text
from devices.errors import InputFault
from engine.api.chat import Usage


class CodeController(QObject):
    """Controls one project at a time. Signals carry immutable values."""

    opened = Signal(str, int)
    files_changed = Signal(list)
    context_ready = Signal(object)
    text_arrived = Signal(str)
    phase_changed = Signal(object)
    undo_changed = Signal(bool)  # whether there are edits to undo
    answered = Signal()
    proposed = Signal(object)
    written = Signal(object)
    taken_back = Signal(object)
    went_back = Signal(object)
    steps_changed = Signal(object)
    changes_found = Signal(str)
    failed = Signal(object)
    busy_changed = Signal(bool)
    consent_wanted = Signal(object)

    def __init__(self, services: AppContext, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._services = services
        # The project's databases are not thread-safe.
        self._lock = threading.Lock()
        self._project: Project | None = None
        self._talk: Conversation | None = None
        self._proposal: Proposal | None = None
        self._assembling: Job | None = None  # assembles the context of a request
        self._stream: StreamJob | None = None
        self._run_of_agent: AgentRun | None = None
        self._agent: Agent | None = None  # of the last task; it goes on after `back`
        self._is_back = False
        self._answer: list[ChatDelta] = []
        self.question = ""
        self.context: Context | None = None
        self._given: tuple[ContextItem, ...] = ()
        self._excluded: frozenset[str] = frozenset()
        self.busy = False
        services.background.at_close(self._end_agent)

    @property
    def has_project(self) -> bool:
        """Whether a folder is open."""
        return self._project is not None

    def open_folder(self, folder: Path) -> None:
        """Open a project and update its index. Closes the previous project."""
        self.stop()
        self._agent, self._is_back = None, False
        self.steps_changed.emit(())
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
        """The text of a project file. Worker thread only.

        Raises: PathRefused, FileMissing, NotText.
        """
        project = self._project
        if project is None:
            raise FileMissing(path)
        return project.workspace.read(path).text

    def close_project(self) -> None:
        """Close the project after waiting for running work on it."""
        self.stop()
        with self._lock:
            if self._project is not None:
                self._project.close()
            self._project = self._talk = self._proposal = None

    def ask(self, question: str, model: str, n_ctx: int, given: Sequence[ContextItem] = ()) -> None:
        """Assemble the context, show it, and send the request."""
        if self._project is None or self.busy:
            return
        if self._talk is None or self._talk.model != model:
            self._talk = Conversation(self._project, model, n_ctx)
        self.question, self._given, self._excluded = question, tuple(given), frozenset()
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
        is_cut = any(item.facts.finish_reason == "length" for item in self._answer)
        talk.keep(asked, text, usage, is_cut=is_cut)
        self.answered.emit()

        def work() -> Proposal:
            with self._lock:
                return talk.proposal()

        def done(proposal: Proposal) -> None:
            self._proposal = proposal
            self.proposed.emit(proposal)

        self._run(work, done)

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
        """Undo the last applied edits."""
        if self._project is not None:
            self._write(self._project, self._project.edits.undo, self.taken_back)

    def _write(self, project: Project, write: Callable[[], tuple[str, ...]], signal: SignalInstance) -> None:
        """Change files, update the index, and emit the changed paths through `signal`."""

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
        """Let the model work on a task with tools. Each action needs consent through `consent_wanted`."""
        if self._project is None or self.busy:
            return
        run = AgentRun(self._services, self._project, self._lock, self)
        earlier, self._is_back = (self._agent if self._is_back else None), False
        self._run_of_agent = run
        run.shown.connect(self.text_arrived)
        run.phase_changed.connect(self.phase_changed)
        run.consent_wanted.connect(self.consent_wanted)

        def over() -> None:
            self._run_of_agent = None
            self._agent = run.agent
            run.deleteLater()
            self._set_busy(False)
            self.steps_changed.emit(self.steps)
            self.answered.emit()

        def failed(error: Exception) -> None:
            over()
            self.failed.emit(error)

        run.ended.connect(lambda _: over())
        run.failed.connect(failed)
        self._set_busy(True)
        run.start(task, model, earlier)

    @property
    def steps(self) -> tuple[str, ...]:
        """The tool calls of the agent's session, one line each."""
        calls = [step.call for step in self._agent.steps] if self._agent is not None else []
        return tuple(_line(f"{call.tool} {_shortened(call.arguments)}")[:_STEP_CHARS] for call in calls)

    def back(self, number: int) -> None:
        """Restore files and conversation to before step `number` of the agent; its next task goes on from there."""
        agent, project = self._agent, self._project
        if agent is None or project is None or self.busy:
            return
        self._is_back = True

        def restore() -> tuple[str, ...]:
            restored = agent.back(number)
            return (*restored.written, *restored.deleted)

        self._write(project, restore, self.went_back)

    def show_changes(self) -> None:
        """Emit the diff of the agent's whole session through `changes_found`."""
        agent = self._agent
        if agent is None or self.busy:
            return

        def work() -> str:
            with self._lock:
                return agent.changes()

        self._run(work, lambda diff: self.changes_found.emit(f"~~~~diff\n{_fenced(diff)}\n~~~~" if diff else ""))

    def decide(self, decision: Decision) -> None:
        """Pass on the user's decision about the agent's request."""
        if self._run_of_agent is not None:
            self._run_of_agent.decide(decision)

    def stop(self) -> None:
        """Stop the current response or agent. A stopped response is not added to the conversation."""
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


# The page's agent: runs on a background thread, asks for consent on the main thread and waits for the decision.

_MARKS = {"open": "☐", "doing": "▸", "done": "☑"}
_SHOWN_CHARS = 300
_STEP_CHARS = 60


class _ApiChat:
    """Chat over the window's connection. `close` ends the current response; thread-safe."""

    def __init__(self, api: Routes, on_phase: Callable[[GenerationPhase], object]) -> None:
        self._api = api
        self._on_phase = on_phase
        self._source: AnswerStream | None = None
        self._lock = threading.Lock()

    def chat(self, model: str, messages: list[dict[str, Any]], **options: Any) -> Iterator[ChatDelta]:
        source = self._api.chat(model, messages, **options)
        with self._lock:
            self._source = source
        try:
            for answer in source:
                if answer.phase is not None:
                    self._on_phase(answer.phase)
                yield answer
        finally:
            source.close()

    def close(self) -> None:
        with self._lock:
            source = self._source
        if source is not None:
            source.close()


class AgentRun(QObject):
    """Runs one task. `shown` carries Markdown for the transcript. Answer `consent_wanted` with `decide`."""

    shown = Signal(str)
    phase_changed = Signal(object)
    consent_wanted = Signal(object)
    ended = Signal(object)
    failed = Signal(object)

    def __init__(self, services: AppContext, project: Project, lock: threading.Lock, parent: QObject) -> None:
        super().__init__(parent)
        self._services = services
        self._project = project
        self._lock = lock
        self._decisions: queue.SimpleQueue[Decision] = queue.SimpleQueue()
        self._chat = _ApiChat(services.api, self.phase_changed.emit)
        self._cancelled = threading.Event()
        self.agent: Agent | None = None

    def start(self, task: str, model: str, earlier: Agent | None = None) -> None:
        """Start the task, in a new session or an earlier one. Every action except reading needs consent."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        transcript = Transcript(self._project.state / "transcripts" / f"{stamp}.jsonl")

        def on_event(event: AgentEvent) -> None:
            transcript.add(event)
            text = as_markdown(event)
            if text:
                self.shown.emit(text)

        toolbox = Toolbox(
            self._project.index, self._project.edits, Consent(self._wait_for_consent), on_event, self._cancelled
        )
        saved = Checkpoints(self._project.workspace, self._project.state / "checkpoints", stamp)
        agent = earlier or Agent(ServerModel(self._chat, model), (), on_event, checkpoints=saved)
        agent.model, agent.tools = ServerModel(self._chat, model), [toolbox]
        agent.on_event, agent.cancelled = on_event, self._cancelled
        self.agent = agent

        def work() -> Ended:
            try:
                with self._lock:
                    return agent.work(task)
            finally:
                transcript.close()

        self._services.background.run(work, self.ended.emit, self._on_error, self)

    def _wait_for_consent(self, request: ConsentRequest) -> Decision:
        """Show the request and wait for the decision. Worker thread only."""
        self.consent_wanted.emit(request)
        return self._decisions.get()

    def decide(self, decision: Decision) -> None:
        """Pass on the user's decision about the current request."""
        self._decisions.put(decision)

    def cancel(self) -> None:
        """Cancel: makes no further calls, ends a running command and answers a pending question with "no"."""
        self._cancelled.set()
        self._decisions.put("no")
        threading.Thread(target=self._chat.close, name="close-agent").start()

    def _on_error(self, error: Exception) -> None:
        if self._cancelled.is_set():
            self.ended.emit(Ended("cancelled"))
        else:
            self.failed.emit(error)


def as_markdown(event: AgentEvent) -> str:  # noqa: PLR0911 - one return per event kind
    """An event as Markdown for the transcript. Empty if the event is not shown."""
    if isinstance(event, AssistantTextEvent):
        return f"\n\n{event.text}\n\n" if event.text else ""
    if isinstance(event, ToolCallEvent):
        return f"\n\n{_code(f'{event.tool} {_shortened(event.arguments)}')}\n\n"
    if isinstance(event, ToolResultEvent):
        return "" if event.ok else f"\n\n> {_line(event.text)}\n\n"
    if isinstance(event, Printed):
        return f"\n\n~~~~\n{_fenced(event.text.rstrip())}\n~~~~\n\n"
    if isinstance(event, Edited):
        return f"\n\n{_code(_line(event.path))}\n\n~~~~diff\n{_fenced(event.diff)}\n~~~~\n\n"
    if isinstance(event, Planned):
        return "\n\n" + "\n".join(f"- {_MARKS[item.state]} {_line(item.text)}" for item in event.items) + "\n\n"
    if isinstance(event, Ended) and event.reason != "answered":
        return f"\n\n*{event.reason}* {_line(event.detail)}\n\n"
    return ""


def _shortened(arguments: str) -> str:
    try:
        text = json.dumps(json.loads(arguments), ensure_ascii=False)
    except (ValueError, RecursionError):
        text = arguments
    return _line(text)


def _fenced(text: str) -> str:
    """Text that cannot close its fence, with invisible characters made visible."""
    return shown_text(text).replace("~~~~", "~~~ ")


def _line(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "…"


def _code(text: str) -> str:
    """Inline code. Backticks inside cannot close it."""
    return f"`` {text.replace('``', '` `')} ``"

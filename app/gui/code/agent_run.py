"""Runs the page's agent on a background thread; asks for consent on the main thread and waits for the decision."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.client import AnswerStream, ChatDelta, Routes
from app.code.agent.checkpoints import Checkpoints
from app.code.agent.loop import Agent
from app.code.agent.models import ServerModel
from app.code.agent.tools import Toolbox
from app.code.agent.transcript import Transcript
from app.code.agent.types import (
    AgentEvent,
    AssistantTextEvent,
    CommandEnded,
    CommandStarted,
    Edited,
    Ended,
    Planned,
    Printed,
)
from app.code.project import Project
from app.generation_phase import GenerationPhase
from app.gui.app_context import AppContext
from app.gui.code.terminal_panel import plain
from app.gui.reasons import known_text
from app.tools.consent import Consent, ConsentRequest, Decision
from app.tools.loop import ToolCallEvent, ToolResultEvent
from app.tools.types import shown_text

_MAX_OUTPUT_CHARS, _MAX_OUTPUT_LINES = 16_000, 40  # maximum output of a command in the transcript
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
    command_started = Signal(str)
    command_wrote = Signal(str)
    command_ended = Signal(object, float)  # exit code, None: it was stopped; seconds
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
        self._shown: list[str] = []
        self._output = ""  # output of the running command
        self._toolbox: Toolbox | None = None

    @property
    def text(self) -> str:
        return "".join(self._shown)

    def start(
        self, task: str, model: str, earlier: Agent | None = None, messages: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Start the task, with the `earlier` agent, or with a new one that gets these messages of the session.

        Every action except reading needs consent.
        """
        stamp = time.strftime("%Y%m%d-%H%M%S")
        transcript = Transcript(self._project.state / "transcripts" / f"{stamp}.jsonl")

        def on_event(event: AgentEvent) -> None:
            transcript.add(event)
            text = self._command_text(event) or as_markdown(event)
            if text:
                self._shown.append(text)
                self.shown.emit(text)

        toolbox = self._toolbox = Toolbox(
            self._project.index, self._project.edits, Consent(self._wait_for_consent), on_event, self._cancelled
        )
        saved = Checkpoints(self._project.workspace, self._project.state / "checkpoints", stamp)
        agent = earlier or Agent(ServerModel(self._chat, model), (), on_event, checkpoints=saved)
        if earlier is None and messages:
            agent.messages = list(messages)
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

    def _command_text(self, event: AgentEvent) -> str:
        """Pass on a command's events. Returns the end of its output as Markdown once it has ended."""
        if isinstance(event, CommandStarted):
            self._output = ""
            self.command_started.emit(event.command)
        elif isinstance(event, Printed):
            self._output = (self._output + event.text)[-_MAX_OUTPUT_CHARS:]
            self.command_wrote.emit(event.text)
        elif isinstance(event, CommandEnded):
            self.command_ended.emit(event.exit_code, event.elapsed_s)
            lines = plain(self._output).rstrip().split("\n")
            ellipsis = ["…"] if len(lines) > _MAX_OUTPUT_LINES else []
            shown = "\n".join([*ellipsis, *lines[-_MAX_OUTPUT_LINES:]])
            return f"\n\n~~~~\n{fenced(shown)}\n~~~~\n\n" if shown.strip() else ""
        return ""

    def stop_command(self) -> None:
        """End the running command; the agent continues."""
        if self._toolbox is not None:
            self._toolbox.stop_command()

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
        return "" if event.ok else f"\n\n> {_one_line(event.text)}\n\n"
    if isinstance(event, Edited):
        return f"\n\n{_code(_one_line(event.path))}\n\n~~~~diff\n{fenced(event.diff)}\n~~~~\n\n"
    if isinstance(event, Planned):
        return "\n\n" + "\n".join(f"- {_MARKS[item.state]} {_one_line(item.text)}" for item in event.items) + "\n\n"
    if isinstance(event, Ended) and event.reason != "answered":
        return f"\n\n*{known_text(event.reason)}* {_one_line(known_text(event.detail))}\n\n"
    return ""


def _shortened(arguments: str) -> str:
    try:
        text = json.dumps(json.loads(arguments), ensure_ascii=False)
    except (ValueError, RecursionError):
        text = arguments
    return _one_line(text)


def fenced(text: str) -> str:
    """Text that cannot close its fence, with invisible characters made visible."""
    return shown_text(text).replace("~~~~", "~~~ ")


def _one_line(text: str) -> str:
    """Text as one line without invisible characters, cut to a readable length."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "…"


def _code(text: str) -> str:
    """Inline code. Backticks inside cannot close it."""
    return f"`` {text.replace('``', '` `')} ``"


def step_lines(agent: Agent | None) -> tuple[str, ...]:
    """The tool calls of an agent's session, one line each."""
    calls = [step.call for step in agent.steps] if agent is not None else []
    return tuple(_one_line(f"{call.tool} {_shortened(call.arguments)}")[:_STEP_CHARS] for call in calls)

"""The agent of the page: works on a thread of the background, asks on the main thread, and waits for the answer."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.client import Answer, AnswerStream, Routes
from app.code.agent.loop import Agent
from app.code.agent.models import ServerModel
from app.code.agent.tools import Toolbox
from app.code.agent.transcript import Transcript
from app.code.agent.types import AgentEvent, Edited, Ended, Planned, Thought
from app.code.project import Project
from app.generation_phase import Phase
from app.gui.app_context import Services
from app.tools.consent import Consent, ConsentRequest, Decision
from app.tools.escape import shown_text
from app.tools.loop import Called, Returned

_MARKS = {"open": "☐", "doing": "▸", "done": "☑"}
_SHOWN_CHARS = 300


class _ApiChat:
    """Chat over the window's connection; `close` ends the answer under way from any thread."""

    def __init__(self, api: Routes, on_phase: Callable[[Phase], object]) -> None:
        self._api = api
        self._on_phase = on_phase
        self._source: AnswerStream | None = None
        self._lock = threading.Lock()

    def chat(self, model: str, messages: list[dict[str, Any]], **options: Any) -> Iterator[Answer]:
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
    """One task. `shown` carries markdown for the transcript; `consent_wanted` must be answered with `decide`."""

    shown = Signal(str)
    phase_changed = Signal(object)
    consent_wanted = Signal(object)
    ended = Signal(object)
    failed = Signal(object)

    def __init__(self, services: Services, project: Project, lock: threading.Lock, parent: QObject) -> None:
        super().__init__(parent)
        self._services = services
        self._project = project
        self._lock = lock
        self._decisions: queue.SimpleQueue[Decision] = queue.SimpleQueue()
        self._chat = _ApiChat(services.api, self.phase_changed.emit)
        self._cancelled = threading.Event()

    def start(self, task: str, model: str) -> None:
        """Begin; every action but reading is asked."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        transcript = Transcript(self._project.state / "transcripts" / f"{stamp}.jsonl")

        def on_event(event: AgentEvent) -> None:
            transcript.add(event)
            text = as_markdown(event)
            if text:
                self.shown.emit(text)

        toolbox = Toolbox(self._project.index, self._project.edits, Consent(self._ask), on_event, self._cancelled)
        agent = Agent(ServerModel(self._chat, model), [toolbox], on_event, cancelled=self._cancelled)

        def work() -> Ended:
            try:
                with self._lock:
                    return agent.work(task)
            finally:
                transcript.close()

        self._services.background.run(work, self.ended.emit, self._on_error, self)

    def _ask(self, request: ConsentRequest) -> Decision:
        """On the worker: show the request and wait for the person."""
        self.consent_wanted.emit(request)
        return self._decisions.get()

    def decide(self, decision: Decision) -> None:
        """The person's answer to the request that is shown."""
        self._decisions.put(decision)

    def cancel(self) -> None:
        """End soon: no further call is made, a command is ended, a waiting question is answered with no."""
        self._cancelled.set()
        self._decisions.put("no")
        threading.Thread(target=self._chat.close, name="close-agent").start()

    def _on_error(self, error: Exception) -> None:
        if self._cancelled.is_set():
            self.ended.emit(Ended("cancelled"))
        else:
            self.failed.emit(error)


def as_markdown(event: AgentEvent) -> str:  # noqa: PLR0911 - one form for each kind
    """An event as it is in the transcript; empty for those that are not shown."""
    if isinstance(event, Thought):
        return f"\n\n{event.text}\n\n" if event.text else ""
    if isinstance(event, Called):
        return f"\n\n{_code(f'{event.tool} {_shortened(event.arguments)}')}\n\n"
    if isinstance(event, Returned):
        return "" if event.ok else f"\n\n> {_line(event.text)}\n\n"
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
    """Text that cannot end the fence around it, nor show what it is not."""
    return shown_text(text).replace("~~~~", "~~~ ")


def _line(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text)
    return shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + "…"


def _code(text: str) -> str:
    """Inline code that no backtick inside can end."""
    return f"`` {text.replace('``', '` `')} ``"

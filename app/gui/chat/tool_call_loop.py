"""Tools of the open chat: starts servers, asks for consent on the main thread, runs calls on a worker."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from PySide6.QtCore import QObject, Signal

from app.answer_facts import AnswerFacts, ToolCall
from app.db import messages
from app.db.records import Conversation, Memory, Message
from app.db.store import TEMPORARY, Store
from app.gui.app_context import AppContext
from app.gui.reasons import error_message, known_text
from app.tools.builtin import MEMORY
from app.tools.loop import ToolCallEvent, carried_out
from app.tools.types import ToolSpec
from engine.api.chat import REMOTE, Embeddings

# The tool modules are imported on first use, so that the window appears sooner.
if TYPE_CHECKING:
    from app.tools.consent import ConsentRequest, ToolConsent, ToolDecision
    from app.tools.toolset import RunningServers, Toolset


class ToolTurns(QObject):
    """Runs the tools of a chat. Answer `consent_wanted` with `decide`; `consent_over` withdraws the question."""

    consent_wanted = Signal(object)
    consent_over = Signal()
    consent_given = Signal(float)  # seconds that the user took to decide
    not_started = Signal(str)

    def __init__(self, services: AppContext, parent: QObject) -> None:
        super().__init__(parent)
        self._services = services
        self._servers: RunningServers | None = None
        self._allowed: dict[int, set[tuple[str, str]]] = {}  # tools that were allowed for a whole chat
        self._decisions: queue.SimpleQueue[ToolDecision] = queue.SimpleQueue()
        self._toolset: Toolset | None = None
        self.recalled: tuple[Memory, ...] = ()  # remembered facts for the response that was prepared last
        self._cancelled = threading.Event()
        self._asked_at = 0.0
        services.background.at_close(self.close)

    def prepare(
        self,
        chat: Conversation,
        names: Sequence[str],
        folder: Path,
        path: Sequence[Message],
        then: Callable[[tuple[ToolSpec, ...]], object],
    ) -> None:
        """Start missing servers and look up what is remembered, then call `then` with the available tools.

        Calls it immediately if `names` is empty.
        """
        self._toolset, self.recalled = None, ()
        if not names:
            then(())
            return
        # One per response: a question of a cancelled response must not get a decision about this one.
        cancelled, self._decisions = threading.Event(), queue.SimpleQueue()
        self._cancelled = cancelled
        servers, consent = self._servers_and_consent(chat.id)
        setting = self._services.settings.now.text("chat.memory")
        choice = self._services.models.get(chat.model)
        n_ctx = choice.n_ctx if choice is not None else 0
        question = next((message.content for message in reversed(path) if message.role == "user"), "")
        foreign = bool(chat.sampling.get("collection")) or any(message.attachments for message in path)

        def work() -> "tuple[Toolset, tuple[ToolSpec, ...], list[str], tuple[Memory, ...]]":
            from app.tools.catalogue import open_sources
            from app.tools.memory import MemoryTool, saves_without_asking
            from app.tools.toolset import Toolset

            sources, problems = open_sources([name for name in names if name != MEMORY], folder, servers, consent)
            recalled: tuple[Memory, ...] = ()
            if MEMORY in names and setting != "off" and chat.id < TEMPORARY:
                memory = MemoryTool(self._services.store, chat.folder_id)
                sources.append(memory)
                recalled = memory.found(question, self._embedded, n_ctx)
            toolset = Toolset(
                sources, consent, {MEMORY} if saves_without_asking(setting, names, foreign=foreign) else ()
            )
            return toolset, toolset.specs(), problems, recalled

        def done(result: "tuple[Toolset, tuple[ToolSpec, ...], list[str], tuple[Memory, ...]]") -> None:
            toolset, specs, problems, recalled = result
            if cancelled.is_set():
                return
            self._toolset, self.recalled = toolset, recalled
            if problems:
                self.not_started.emit("\n".join(map(known_text, problems)))
            then(specs)

        def failed(error: Exception) -> None:
            if not cancelled.is_set():
                self.not_started.emit(error_message(error))
                then(())

        self._services.background.run(work, done, failed, self)

    def _embedded(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> list[list[float]] | None:
        """Vectors from a local model for embeddings, if there is one. Worker thread only."""
        api = self._services.api
        rows = [row for row in api.chat_models() if "embedding" in row.capabilities and row.origin != REMOTE]
        if not rows:
            return None
        model = next((row for row in rows if row.state == "loaded"), rows[0]).id
        answer = api.post("/v1/embeddings", Embeddings, {"model": model, "input": list(texts), "input_type": kind})
        return [each.embedding for each in sorted(answer.data, key=lambda each: each.index)]

    def carry_out(
        self,
        message: Message,
        calls: Sequence[ToolCall],
        on_row: Callable[[Message], object],
        on_end: Callable[[int], object],
        on_failed: Callable[[], object],
    ) -> bool:
        """Run the calls of a response one after another. Each result is saved before the next call starts.

        `on_row` gets each result, `on_end` the id of the last row; `on_failed` is called if they cannot continue.
        Returns False if there are no tools.
        """
        toolset, cancelled = self._toolset, self._cancelled
        if toolset is None:
            return False
        results = _Results(self._services.store.of(message.id), toolset, message, calls, cancelled)

        def arrived(rows: list[Message]) -> None:
            for row in rows if not cancelled.is_set() else ():
                on_row(row)

        def done(_: None) -> None:
            if not cancelled.is_set():
                on_end(results.last_id)

        def failed(error: Exception) -> None:
            if not cancelled.is_set():
                self.not_started.emit(error_message(error))
                on_failed()

        self._services.background.stream(lambda: results, arrived, done, failed, self)
        return True

    def decide(self, decision: "ToolDecision") -> None:
        """Pass on the user's decision about the current question."""
        self._decisions.put(decision)
        self.consent_given.emit(time.monotonic() - self._asked_at)

    def stop(self) -> None:
        """Cancel running and pending calls. A pending question is answered with "no"."""
        self._cancelled.set()
        if self._servers is not None:
            self._servers.cancel_calls()
        self._decisions.put("no")
        self.consent_over.emit()

    def close(self) -> None:
        self._cancelled.set()
        self._decisions.put("no")
        if self._servers is not None:
            self._servers.close()

    def _servers_and_consent(self, chat: int) -> "tuple[RunningServers, ToolConsent]":
        """The shared tool servers, and the consents of this chat."""
        from app.tools.consent import ConsentStore, ToolConsent
        from app.tools.toolset import RunningServers

        self._servers = self._servers or RunningServers()
        ask = partial(self._wait_for_consent, self._cancelled, self._decisions)
        return self._servers, ToolConsent(ConsentStore(), ask, self._allowed.setdefault(chat, set()))

    def _wait_for_consent(
        self, cancelled: threading.Event, decisions: "queue.SimpleQueue[ToolDecision]", request: "ConsentRequest"
    ) -> "ToolDecision":
        """Ask for consent and wait for the decision. Worker thread only."""
        while not decisions.empty():
            decisions.get()  # discard the decision on a withdrawn question
        if cancelled.is_set():
            return "no"
        self._asked_at = time.monotonic()
        self.consent_wanted.emit(request)
        return decisions.get()


class _Results:
    """The results of a response's calls, as stored rows. Iterating runs the calls; worker thread only."""

    def __init__(
        self,
        store: Store,
        tools: "Toolset",
        message: Message,
        calls: Sequence[ToolCall],
        cancelled: threading.Event,
    ) -> None:
        self.last_id = message.id
        self._store = store
        self._tools = tools
        self._chat = message.conversation_id
        self._calls = calls
        self._cancelled = cancelled

    def __iter__(self) -> Iterator[Message]:
        """Run the calls and yield each result after it is saved."""
        for event in carried_out(self._tools, self._calls, self._cancelled):
            if isinstance(event, ToolCallEvent):
                title, started_at = self._tools.title(event.tool), time.monotonic()
                continue
            if self._cancelled.is_set():
                return
            seconds = round(time.monotonic() - started_at, 2)
            facts = AnswerFacts(
                tool=title, call_id=event.call_id, ok=event.ok, seconds=seconds, sources=event.sources
            )
            row = self._store.submit(
                messages.add, self._chat, self.last_id, "tool", event.text, facts=facts
            ).result()
            self.last_id = row.id
            yield row

    def close(self) -> None:
        """Do nothing: `cancelled` stops the calls."""

"""Background requests of the window: chat titles and prompt prefill.

All of them have `"priority": "side"`. The server runs them only while it has no other requests and cancels them
when one arrives. Their text is never sent to another server.
"""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.client import ChatResponse
from app.db import conversations
from app.db.records import Conversation, Message
from app.gui.app_context import AppContext
from app.gui.chat.chat_transactions import title_of
from app.gui.chat.composer import Composer
from app.gui.chat.controller import ChatController
from app.gui.chat.request import branch_body
from devices.battery import is_unplugged

_TITLE = "Write a title for this conversation in at most six words. Write only the title."
_TITLE_TOKENS = 24
_LONGEST_TITLE = 60
_IDLE_MS = 2000
# Delay after typing before the draft is prefilled, and the minimum number of new characters.
_PAUSE_MS = 500
_NEW_CHARS = 16
# Limits of prompt prefill per message: seconds of compute, and prefilled characters that were then deleted.
BUDGET_S = {"mains": 30.0, "battery": 4.0}
MAX_WASTED_CHARS = {"mains": 4000, "battery": 800}


class _Aside(QObject):
    """Runs one background request at a time."""

    def __init__(self, services: AppContext, parent: QObject) -> None:
        super().__init__(parent)
        self._services = services
        self._cancelled = threading.Event()
        services.background.at_close(self.cancel)

    def cancel(self) -> None:
        """Stop. Text that was already prefilled stays cached."""
        self._cancelled.set()

    def _request(self, body: dict[str, Any], limit_s: float, done: Callable[[ChatResponse, float], object]) -> None:
        self._cancelled.set()
        cancelled = self._cancelled = threading.Event()
        api = self._services.api

        def work() -> tuple[ChatResponse, float]:
            whole, started_at = ChatResponse(), time.monotonic()
            stream = api.answer({**body, "priority": "side"})
            watch = threading.Timer(limit_s, stream.close)
            watch.start()
            try:
                for chunk in stream:
                    whole.take(chunk)
                    if cancelled.is_set():
                        break
            finally:
                watch.cancel()
                stream.close()
            return whole, time.monotonic() - started_at

        def on_answer(result: tuple[ChatResponse, float]) -> None:
            if not cancelled.is_set():
                done(*result)

        self._services.background.run(work, on_answer, lambda _: None, self)


class Titles(_Aside):
    """Has the model title a new chat once it is idle. A title set by the user is not replaced."""

    titled = Signal(int)

    def __init__(self, services: AppContext, controller: ChatController, parent: QObject) -> None:
        super().__init__(services, parent)
        self._controller = controller
        self._idle = QTimer(self, singleShot=True, interval=_IDLE_MS)
        self._idle.timeout.connect(self._begin)
        controller.busy_changed.connect(self._on_busy)

    def _on_busy(self, busy: bool) -> None:
        self._idle.stop()
        if busy:
            self.cancel()
        elif self._is_needed():
            self._idle.start()

    def _is_needed(self) -> bool:
        chat, path = self._controller.conversation, self._controller.tree.path()
        model = self._services.models.get(chat.model)
        return (
            self._services.settings.now.flag("chat.titles")
            and model is not None
            and not model.demo
            and not model.remote
            and [message.role for message in path] == ["user", "assistant"]
            and path[1].status == "complete"
            and chat.title == title_of(path[0].content, path[0].attachments)
        )

    def _begin(self) -> None:
        chat, path = self._controller.conversation, self._controller.tree.path()
        if self._controller.busy or not self._is_needed():
            return
        messages = [*path, Message(0, chat.id, None, "user", _TITLE)]
        sees = self._services.models.sees(chat.model)
        body = branch_body(chat.model, messages, system_prompt=chat.system_prompt, sees=sees)
        body |= {"max_tokens": _TITLE_TOKENS, "temperature": 0, "reasoning_effort": "none"}
        self._request(body, 60.0, lambda whole, _: self._set_title(chat, whole.content))

    def _set_title(self, chat: Conversation, text: str) -> None:
        title = clean_title(text)
        if not title or self._controller.conversation.id != chat.id or not self._is_needed():
            return
        self._controller.conversation = replace(self._controller.conversation, title=title)
        future = self._services.store.of(chat.id).submit(conversations.update, chat.id, title=title)
        self._services.background.watch(future, lambda _: self.titled.emit(chat.id), lambda _: None, self)


def clean_title(text: str) -> str:
    """Extract a title from the model's output; "" if there is none."""
    line = next((line for line in text.strip().splitlines() if line.strip()), "")
    line = re.sub(r"^\W*(?:title|here (?:is|are)[^:]*)\s*:\s*", "", line.strip(), flags=re.IGNORECASE)
    line = " ".join(line.strip(" \"'“”*#_`.").split())
    return line if 2 <= len(line) <= _LONGEST_TITLE and any(c.isalpha() for c in line) else ""  # noqa: PLR2004 - a word


class PromptPrefill(_Aside):
    """Prefills the context and the draft while the user types, within limits of time and waste."""

    def __init__(
        self, services: AppContext, controller: ChatController, composer: Composer, parent: QObject
    ) -> None:
        super().__init__(services, parent)
        self._controller, self._composer = controller, composer
        self._read: str | None = None  # the draft text prefilled so far; None if nothing of this chat was prefilled
        self._chat = -1
        self.spent_s = 0.0
        self.wasted_chars = 0
        self._pause = QTimer(self, singleShot=True, interval=_PAUSE_MS)
        self._pause.timeout.connect(self._begin)
        composer.draft_changed.connect(lambda: self._pause.start() if not controller.busy else None)
        controller.busy_changed.connect(self._on_busy)
        controller.opened.connect(self._pause.start)
        controller.project.changed.connect(self._pause.start)

    def _on_busy(self, busy: bool) -> None:
        if busy:
            self._pause.stop()
            self.cancel()
            self._read, self.spent_s, self.wasted_chars = None, 0.0, 0

    def _power(self) -> str:
        return "battery" if is_unplugged() else "mains"

    def _allowed(self, power: str) -> bool:
        chosen = self._services.settings.now.text("chat.read_ahead")
        return chosen == "always" or (chosen == "mains" and power == "mains")

    def _begin(self) -> None:
        chat, draft, power = self._controller.conversation, self._composer.text, self._power()
        model = self._services.models.get(chat.model)
        if self._controller.busy or model is None or not model.loaded or chat.tools or not self._allowed(power):
            return
        if model.remote:  # do not send an unsent draft to another server
            return
        if chat.id != self._chat:
            self._chat, self._read, self.spent_s, self.wasted_chars = chat.id, None, 0.0, 0
        what = self._controller.compactor.sent(self._controller.tree.path())
        prompt = self._controller.compactor.prompt(chat, what)
        before = self._read or ""
        context = self._read is None and bool(what.messages or prompt)
        if not context and len(draft) < len(before) + _NEW_CHARS and draft.startswith(before):
            return
        self.wasted_chars += len(before) - len(_common(before, draft))
        if self.spent_s >= BUDGET_S[power] or self.wasted_chars > MAX_WASTED_CHARS[power]:
            return
        # The last word may be incomplete. Prefill it after the next space.
        words = draft[: draft.rfind(" ") + 1] if " " in draft else ""
        messages = [*what.messages, Message(0, chat.id, None, "user", words or " ")]
        sees = self._services.models.sees(chat.model)
        body = branch_body(chat.model, messages, system_prompt=prompt, sampling=chat.sampling, sees=sees)
        body |= {"max_tokens": 1}
        self._read = words

        def done(whole: ChatResponse, seconds: float) -> None:
            del whole
            self.spent_s += seconds

        self._request(body, BUDGET_S[power] - self.spent_s, done)


def _common(first: str, second: str) -> str:
    length = next((n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    return first[: min(len(first), len(second))] if length is None else first[:length]


class SideWork(QObject):
    """Chat titles and prompt prefill for the chat page."""

    def __init__(
        self, services: AppContext, controller: ChatController, composer: Composer, parent: QObject
    ) -> None:
        super().__init__(parent)
        self.titles = Titles(services, controller, self)
        self.read_ahead = PromptPrefill(services, controller, composer, self)

"""Controls one open conversation: sends, receives, branches. Each step is saved before the next one starts."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QObject, Signal

from app.answer_facts import NO_FACTS, AnswerFacts, WebSource, sources_of
from app.client import ChatResponse
from app.db import conversations, messages
from app.db.records import Attachment, Conversation, Message, Status, Summary
from app.db.store import TEMPORARY, Store
from app.generation_phase import PERMISSION, WAITING, GenerationPhase
from app.gui.app_context import AppContext
from app.gui.chat import chat_transactions
from app.gui.chat.answer_stats import number, speed_facts, used_tokens
from app.gui.chat.compactor import Compactor
from app.gui.chat.composer import Composer
from app.gui.chat.project_of_chat import ProjectOfChat
from app.gui.chat.request import ArrivingAnswer, branch_body, pictures
from app.gui.chat.tool_call_loop import ToolTurns
from app.gui.chat.tree import MessageTree, pair_of
from app.gui.reasons import error_message
from app.gui.widgets.basics import Banner
from app.tools.loop import MAX_ROUNDS
from app.tools.memory import memory_prompt
from app.tools.types import ToolSpec


class ChatController(QObject):
    """The controller behind a transcript. Signals carry message ids of the visible branch."""

    opened = Signal()  # another conversation, or another branch of the same one
    message_added = Signal(int)
    message_changed = Signal(int)
    text_arrived = Signal(int, str, str)  # id, content, reasoning
    phase_changed = Signal(int, object)  # id, Phase
    busy_changed = Signal(bool)
    conversation_changed = Signal(object)
    save_failed = Signal(str, tuple, str)  # unsaved message text, its attachments, reason
    failed = Signal(object)  # ApiError that ended the response

    def __init__(self, services: AppContext, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._services = services
        self.conversation = Conversation(0)
        self.tree = MessageTree()
        self.project = ProjectOfChat(services, self)
        self.conversation_changed.connect(self.project.follow)
        self.compactor = Compactor(services, self.project, self)
        self.second_model = ""  # also responds to each new message, after the first model
        self._second_wanted = False
        self.answer = ArrivingAnswer(services, self)
        self.answer.text_arrived.connect(self.text_arrived)
        self.answer.phase_changed.connect(self.phase_changed)
        self.answer.ended.connect(self._finish)
        self.answer.failed.connect(self.failed)
        self.answer.save_failed.connect(lambda why: self.save_failed.emit("", (), why))
        self.visit = 0  # number of conversations opened; a result for an earlier one is dropped
        self._starts = self._starting = 0  # number of the request whose rows are being stored; 0: none
        self._sent_pictures = False  # whether the current request contains images
        self.tools = ToolTurns(services, self)
        self._calling = False
        self._preparing = 0  # id of the response that waits for its tools
        self._deciding_s = 0.0  # time that the user took to decide about tools of this response
        self._preparing_phase = WAITING
        self.tools.consent_wanted.connect(lambda _: self._on_preparing(PERMISSION))
        self.tools.consent_given.connect(lambda seconds: self._on_preparing(WAITING, seconds))

    @property
    def busy(self) -> bool:
        """True from sending a message until its response has ended."""
        return bool(self._starting) or self._calling or self.answer.so_far is not None

    @property
    def answering_id(self) -> int:
        """Id of the message that is being generated, or 0."""
        return self.answer.message_id

    @property
    def phase(self) -> tuple[GenerationPhase, float]:
        """Phase of the current response, and its start time (monotonic clock)."""
        now = self.answer.so_far
        return (now.phase, now.began) if now else (self._preparing_phase, time.monotonic())

    def _on_preparing(self, phase: GenerationPhase, decided_s: float = 0.0) -> None:
        """The user is asked about a tool of the response that is being prepared, or has decided."""
        self._preparing_phase = phase
        self._deciding_s += decided_s
        if self._preparing:
            self.phase_changed.emit(self._preparing, phase)

    @property
    def partial(self) -> Message | None:
        """The message that is being generated, with the text received so far. None between responses."""
        now = self.answer.so_far
        if now is None:
            return None
        return replace(
            self.tree[self.answering_id], content=now.content, reasoning=now.reasoning, status="streaming"
        )

    def pair(self, message_id: int) -> list[int]:
        """Responses to show side by side, first model first. Empty if there is no pair."""
        if not self.second_model:
            return []
        return pair_of(self.tree, message_id, self.second_model, has_second=self._second_wanted)

    @property
    def _store(self) -> Store:
        return self._services.store.of(self.conversation.id)

    def _leave(self, conversation_id: int) -> None:
        """Stop, because another conversation will be shown. Leaving a temporary one deletes it."""
        self.stop()
        self.visit += 1
        previous_id = self.conversation.id
        if previous_id >= TEMPORARY and previous_id != conversation_id:
            self._watch(self._store.submit(conversations.remove, previous_id))

    def new(self, conversation: Conversation) -> None:
        """Show an empty conversation. It is saved with its first message."""
        self._leave(conversation.id)
        self.conversation = conversation
        self.tree = MessageTree()
        self.compactor.open(conversation, ())
        self.opened.emit()
        self.conversation_changed.emit(conversation)

    def open(self, conversation_id: int, message_id: int | None = None) -> None:
        """Load and show a conversation, on the branch of `message_id` if given."""
        self._leave(conversation_id)
        visit = self.visit

        def show(loaded: tuple[Conversation, list[Message], list[Summary]]) -> None:
            if visit != self.visit:
                return
            self.stop()  # a response that was started while the chat was read
            self.visit += 1
            self.conversation, rows, folds = loaded
            self.tree = MessageTree(rows, self.conversation.leaf_id)
            self.compactor.open(self.conversation, folds)
            if message_id is not None and message_id in self.tree:
                self.tree.switch(message_id)
            self.opened.emit()
            self.conversation_changed.emit(self.conversation)

        store = self._services.store.of(conversation_id)
        self._watch(store.submit(messages.whole, conversation_id), show)

    def change(self, **fields: Any) -> None:
        """Change fields of the conversation (model, system_prompt, sampling, title, ...)."""
        self.conversation = replace(self.conversation, **fields)
        if self.conversation.id:
            self._watch(self._store.submit(conversations.update, self.conversation.id, **fields))
        self.conversation_changed.emit(self.conversation)

    def send(self, text: str, attachments: tuple[Attachment, ...] = ()) -> None:
        """Send a message at the end of the visible branch."""
        self._send_message(text, attachments, self.tree.leaf_id)

    def edit(self, message_id: int, text: str) -> None:
        """Send an edited message as a new branch. The old branch stays."""
        old = self.tree[message_id]
        self._send_message(text, old.attachments, old.parent_id)

    def leave_out_pictures(self, message_id: int) -> None:
        """Retry without the images of the parent message, or without all images if it has none.

        Used after the server rejected an image.
        """
        if self.busy:
            return
        self.tree.switch(message_id)
        with_images = [message for message in self.tree.path() if pictures(message)]
        question = self.tree[message_id].parent_id
        for message in [message for message in with_images if message.id == question] or with_images:
            self._write(replace(message, facts=message.facts.updated(AnswerFacts(pictures_left_out=True))))
        self.regenerate(message_id)

    def regenerate(self, message_id: int) -> None:
        """Generate another response as a new branch. An empty failed response is overwritten instead."""
        message = self.tree[message_id]
        question_id = message.parent_id
        if self.busy or question_id is None:
            return
        if message.status == "error" and not (message.content or message.reasoning):
            self.tree.switch(message_id)
            self.tree.replace(replace(message, status="streaming", facts=NO_FACTS))
            self._generate(message_id, ChatResponse(), continue_last=False)
            self.message_changed.emit(message_id)
            return
        self._start(self._store.submit(chat_transactions.answer_again, self.conversation, question_id))

    def continue_answer(self, message_id: int) -> None:
        if self.busy or self.tree.leaf_id != message_id:
            return
        message = self.tree[message_id]
        answer = ChatResponse(content=message.content, reasoning=message.reasoning)
        self.tree.replace(replace(message, status="streaming"))
        self.message_changed.emit(message_id)
        self._generate(message_id, answer, continue_last=True)

    def switch_branch(self, message_id: int) -> None:
        """Show the branch through this message."""
        if self.busy:
            return
        self.tree.switch(message_id)
        if self.conversation.id:
            fields = {"leaf_id": self.tree.leaf_id}
            self._watch(self._store.submit(conversations.update, self.conversation.id, **fields))
        self.opened.emit()

    def rewrite(self, message_id: int, text: str) -> None:
        """Replace a response by the user's text and mark it as edited, also while another one is generated."""
        if message_id in {self.answering_id, self._preparing} or message_id not in self.tree:
            return
        message = self.tree[message_id]
        facts = message.facts.updated(AnswerFacts(edited=True))
        self._write(replace(message, content=text, status="complete", facts=facts))
        self.message_changed.emit(message_id)

    def remove(self, message_id: int) -> None:
        """Delete a message and everything below it."""
        if self.busy or message_id not in self.tree:
            return
        parent, visit = self.tree[message_id].parent_id, self.visit

        def gone(_: object) -> None:
            if visit == self.visit:
                self.open(self.conversation.id, parent)

        future = self._store.submit(messages.remove, self.conversation.id, message_id)
        self._watch(future, gone, lambda error: self.save_failed.emit("", (), error_message(error)))

    def stop(self) -> None:
        """Stop the response. The text received so far is saved."""
        if self._starting:
            self._starting, self._second_wanted = 0, False
            self.busy_changed.emit(False)
        if self._calling:
            self._calling = False
            self.tools.stop()
            self.compactor.cancel()
            waiting, self._preparing = self._preparing, 0
            if waiting in self.tree:
                self._write(replace(self.tree[waiting], status="stopped"))
                self.message_changed.emit(waiting)
            self.busy_changed.emit(False)
        self.answer.stop()

    def _send_message(self, text: str, attachments: tuple[Attachment, ...], parent_id: int | None) -> None:
        if self.busy:
            return
        self._second_wanted = self.second_model not in {"", self.conversation.model}
        draft = chat_transactions.Draft(self.conversation, parent_id, text, attachments)
        future = self._store.submit(chat_transactions.ask, draft)
        self._start(future, lambda why: self.save_failed.emit(text, attachments, why))

    def _start(
        self,
        future: "Future[chat_transactions.Turn]",
        on_not_saved: Callable[[str], object] | None = None,
        *,
        is_second: bool = False,
    ) -> None:
        """Generate a response once its rows are stored. It stays empty if it is stopped or left before that."""
        self._starts += 1
        self._starting, start, visit = self._starts, self._starts, self.visit
        self.busy_changed.emit(True)

        def done(turn: chat_transactions.Turn) -> None:
            self._second_wanted = self._second_wanted and not is_second
            if visit == self.visit:
                self._on_turn(turn)
            if start == self._starting:
                self._generate(turn.answer.id, ChatResponse(), continue_last=False)
                return
            self._write(replace(turn.answer, status="stopped"))
            if visit == self.visit:
                self.message_changed.emit(turn.answer.id)

        def failed(error: Exception) -> None:
            is_awaited = start == self._starting
            self._starting = 0 if is_awaited else self._starting
            if on_not_saved is not None:
                on_not_saved(error_message(error))
            else:
                self.save_failed.emit("", (), error_message(error))
            if is_awaited:  # last: messages that wait may be sent now
                self.busy_changed.emit(False)

        self._watch(future, done, failed)

    def _on_turn(self, turn: chat_transactions.Turn) -> None:
        is_new = not self.conversation.id
        if is_new:
            self.conversation = turn.conversation
        for message in (turn.question, turn.answer):
            if message is not None:
                self.tree.add(message)
        if turn.question is None or len(self.tree.siblings(turn.question.id)) > 1:
            self.opened.emit()
        else:
            self.message_added.emit(turn.question.id)
            self.message_added.emit(turn.answer.id)
        if is_new:
            self.conversation_changed.emit(self.conversation)

    def _generate(self, message_id: int, answer: ChatResponse, *, continue_last: bool) -> None:
        """Request a response after the enabled tools have started."""
        self._starting, self._calling, self._preparing = 0, True, message_id
        self._deciding_s, self._preparing_phase = 0.0, WAITING

        def go_on(specs: tuple[ToolSpec, ...]) -> None:
            self._calling, self._preparing = False, 0
            answer.began += self._deciding_s
            self._stream(message_id, answer, specs, continue_last=continue_last)

        # The second response is for comparison only, so it gets no tools: calls would run twice.
        is_second = bool(self.second_model) and self.tree[message_id].model == self.second_model
        tools = () if is_second else self.conversation.tools
        self.busy_changed.emit(True)

        def prepare() -> None:
            if message_id in self.tree and self._preparing == message_id:
                self.tools.prepare(self.conversation, tools, self.project.folder, self.tree.path(), go_on)

        self.compactor.before_answer(self.conversation, self.tree.path(), prepare)

    def _stream(
        self, message_id: int, answer: ChatResponse, specs: tuple[ToolSpec, ...], *, continue_last: bool
    ) -> None:
        path = self.tree.path()
        if not continue_last:
            path = path[:-1]
        what = self.compactor.sent(path)
        model = self._model_of(message_id)
        sees = self._services.models.sees(model)
        self._sent_pictures = sees and any(
            pictures(sent) and not sent.facts.pictures_left_out for sent in what.messages
        )
        body = branch_body(
            model,
            what.messages,
            system_prompt="\n\n".join(
                filter(None, (self.compactor.prompt(self.conversation, what), memory_prompt(self.tools.recalled)))
            ),
            sampling=self.conversation.sampling,
            continue_last=continue_last,
            tools=specs,
            sees=sees,
        )
        self.answer.begin(message_id, answer, body)

    def _finish(self, message_id: int, answer: ChatResponse, status: Status, end: AnswerFacts) -> None:
        facts = answer.facts().updated(end)
        if status == "error" and self._sent_pictures:
            facts = facts.updated(AnswerFacts(pictures_sent=True))
        if answer.content and not answer.tools.calls:
            sources = self._sources(message_id, answer.content)
            remembered = tuple(memory.text for memory in self.tools.recalled)
            facts = facts.updated(AnswerFacts(sources=sources, memories=remembered))
        text, reasoning = answer.content, answer.reasoning
        message = replace(self.tree[message_id], content=text, reasoning=reasoning, status=status, facts=facts)
        self._write(message)
        if status == "stopped" and answer.content:
            self._count(message, answer)
        self._second_wanted = self._second_wanted and status == "complete"
        self.message_changed.emit(message_id)
        if status == "complete" and answer.tools.calls and self._call_tools(message, answer):
            return
        if self._second_wanted:
            self._request_second(message_id)
        else:
            self.busy_changed.emit(False)
            self.compactor.on_answered(self.conversation, self.tree.path(), used_tokens(message))

    def _call_tools(self, message: Message, answer: ChatResponse) -> bool:
        """Run the tool calls of a response, save each result, then continue the response.

        Returns False if there is nothing to run.
        """
        conversation = self.conversation
        if chat_transactions.rounds(self.tree.path()) > MAX_ROUNDS:
            return False

        def written(row: Message) -> None:
            self.tree.add(row)
            self.message_added.emit(row.id)

        def end(last_id: int) -> None:
            self._calling = False
            store = self._services.store.of(conversation.id)
            self._start(store.submit(chat_transactions.answer_again, conversation, last_id))

        def fail() -> None:
            self._calling = False
            self.busy_changed.emit(False)

        self._calling = self.tools.carry_out(message, answer.tools.calls, written, end, fail)
        return self._calling

    def _sources(self, message_id: int, text: str) -> tuple[WebSource, ...]:
        """Pages of the web that the tools found for this response."""
        sources: list[WebSource] = []
        for message in self.tree.path():
            if message.role == "user":
                sources = []
            elif message.role == "tool":
                sources += message.facts.sources
            elif message.id == message_id:
                break
        return sources_of(sources, text)

    def _write(self, message: Message) -> None:
        """Save the final state of a response."""
        if message.id in self.tree:
            self.tree.replace(message)
        future = self._services.store.of(message.id).submit(
            messages.finish,
            message.id,
            content=message.content,
            reasoning=message.reasoning,
            status=message.status,
            facts=message.facts,
        )
        self._watch(future, None, lambda error: self.save_failed.emit("", (), error_message(error)))

    def _count(self, message: Message, answer: ChatResponse) -> None:
        """Count the tokens of a stopped response to get its speed. The server reports speed only at the end."""
        model, text = self._model_of(message.id), message.reasoning + message.content

        def counted(count: int) -> None:
            self._write(replace(message, facts=message.facts.updated(speed_facts(answer, count))))
            if message.id in self.tree:
                self.message_changed.emit(message.id)

        self._services.background.run(
            lambda: self._services.api.count_tokens(model, text), counted, lambda _: None, self
        )

    def _request_second(self, message_id: int) -> None:
        """Request the second model's response, after the first, so that both show their own speed."""
        conversation = replace(self.conversation, model=self.second_model)
        question_id = self.tree[message_id].parent_id
        assert question_id is not None  # a response has a parent
        future = self._store.submit(chat_transactions.answer_again, conversation, question_id)
        self._start(future, is_second=True)

    def _model_of(self, message_id: int) -> str:
        """The model that writes this message: its own if available, else the conversation's."""
        model = self.tree[message_id].model
        return model if self._services.models.get(model) is not None else self.conversation.model

    def _watch(self, future: Any, on_done: Any = None, on_error: Any = None) -> None:
        self._services.background.watch(future, on_done, on_error, self)


class ContextWatch(QObject):
    """Warns about a full context, once per level and branch, so that a closed warning stays closed."""

    new_chat_wanted = Signal()

    def __init__(
        self, services: AppContext, controller: ChatController, composer: Composer, banner: Banner, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._services = services
        self._controller, self._composer, self._banner = controller, composer, banner
        controller.compactor.changed.connect(self.refresh)
        controller.compactor.noticed.connect(banner.notify)
        self._warned: tuple[int, int | None, str] | None = None
        self._warning = ""  # text shown in the banner
        self._counted: tuple[int, int | None] | None = None  # the branch that `_used` belongs to
        self._used, self._alone, self._overflowed = 0, True, False

    def n_ctx(self) -> int:
        """Context length of the selected model; 0 if unknown."""
        choice = self._services.models.get(self._controller.conversation.model)
        return choice.n_ctx if choice else 0

    def refresh(self) -> None:
        """Count the branch's tokens, update the meter and show a warning if needed."""
        path = self._controller.tree.path()
        last = next((message for message in reversed(path) if used_tokens(message)), None)
        used = used_tokens(last) if last is not None else 0
        folds = self._controller.compactor.folds
        if not used or (last is not None and any(fold.created_s > last.created_s for fold in folds)):
            used = self._controller.compactor.estimate(path)
        self._counted, self._used, self._alone = self._branch(), used, not path
        self._overflowed = bool(path) and path[-1].facts.error_code == "context_length_exceeded"
        self._show()

    def refresh_draft(self) -> None:
        """The same after the draft changed: with every key, so that the branch is not counted again."""
        if self._counted == self._branch():
            self._show()
        else:
            self.refresh()

    def _branch(self) -> tuple[int, int | None]:
        return (self._controller.conversation.id, self._controller.tree.leaf_id)

    def _show(self) -> None:
        warn = self._services.settings.now.integer("chat.context_warn_percent") / 100
        meter = self._composer.meter
        meter.show_counts(self._used, self._composer.draft_tokens(), self.n_ctx(), warn)
        if meter.level == "ok":
            self._take_warning_back()
        elif not self._controller.busy and not self._overflowed:
            self._warn(self._used, meter.level, alone=self._alone)

    def _take_warning_back(self) -> None:
        """Hide the outdated warning; the next one is shown again."""
        if self._warning and self._banner.isVisible() and self._banner.text == self._warning:
            self._banner.hide()
        if self._warning:
            self._warning, self._warned = "", None

    def _fold(self) -> None:
        self._controller.compactor.fold_more(self._controller.conversation, self._controller.tree.path())

    def _warn(self, used: int, level: str, *, alone: bool) -> None:
        here = (*self._branch(), level)
        if self._warned == here or (self._banner.isVisible() and self._banner.tone == "bad"):
            return  # a reported error stays until it is closed
        self._warned = here
        draft, total = number(self._composer.draft_tokens()), number(self.n_ctx())
        if alone:
            self._banner.notify(
                self.tr(
                    "Your draft has about {draft} tokens; this model takes {total} including its answer. Shorten "
                    "it, attach less, or choose a model with a longer context."
                ).format(draft=draft, total=total),
                "warn",
            )
            self._warning = self._banner.text
            return
        words = self.tr("This chat is close to the model's limit: {used} of {total} tokens.")
        if level == "bad" and not self._composer.draft_tokens():
            words = self.tr("This chat needs {used} tokens; the model takes {total}.")
        elif level == "bad":
            words = self.tr("With your draft, this chat needs {used} tokens; the model takes {total}.")
        self._banner.notify(
            words.format(used=number(used + self._composer.draft_tokens()), total=total),
            "warn",
            (self.tr("Summarize the older part"), self._fold),
            (self.tr("New chat"), self.new_chat_wanted.emit),
        )
        self._warning = self._banner.text

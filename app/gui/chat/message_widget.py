"""The widget of one message in the transcript."""

import json
from collections.abc import Callable
from functools import partial

import msgspec
from PySide6.QtCore import QEvent, Qt, QTimer, Signal
from PySide6.QtGui import QEnterEvent, QGuiApplication
from PySide6.QtWidgets import QFrame, QLayout, QVBoxLayout, QWidget

from app.answer_facts import ToolCall
from app.db.records import Message
from app.generation_phase import GenerationPhase
from app.gui import formatted
from app.gui.chat.answer_stats import FactsLine, answer_facts, runaway_note
from app.gui.chat.composer import MOST_CHIPS
from app.gui.chat.message_editor import MessageEditor
from app.gui.chat.phase_label import PhaseLabel
from app.gui.markdown.view import MarkdownView
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, button, framed, label, row, stack
from app.gui.widgets.flow import Flow
from app.gui.widgets.popups import Menu
from app.gui.widgets.virtual_list import ColumnItem

_BUBBLE_FRACTION = 0.85
_DONE_MS = 1500


_LONG, _LONG_LINES = 4000, 40  # a longer message of the user is folded to this
_UNFOLDED = 100_000  # characters shown at most: a widget has a limited height


def folded(text: str) -> str:
    """The part of a message of the user that is shown at first."""
    if len(text) <= _LONG and text.count("\n") <= _LONG_LINES:
        return text
    lines = text[:_LONG].split("\n")
    return "\n".join(lines[:_LONG_LINES]).rstrip() + " …"


def _as_code(content: str) -> str:
    """An answer that is one JSON object or list, as a code block: running text would lose its indentation."""
    text = content.strip()
    if not text.startswith(("{", "[")) or "```" in text:
        return content
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return content
    return f"```json\n{text}\n```" if isinstance(parsed, dict | list) and parsed else content


class MessageWidget(ColumnItem):
    """Text, attachments, reasoning, tool calls, statistics and actions of a message."""

    regenerate = Signal(int)
    edited = Signal(int, str)
    continued = Signal(int)
    switched = Signal(int)
    fixed = Signal(int, str)  # message id, chosen fix for an error
    rewritten = Signal(int, str)  # a response, edited by the user
    removed = Signal(int)
    forked = Signal(int)
    read_aloud = Signal(int, str)

    def __init__(
        self,
        theme: Theme,
        message: Message,
        siblings: list[int],
        *,
        last: bool,
        title: str,
        n_ctx: int = 0,
        first: bool = False,
        narrow: bool = False,
    ) -> None:
        super().__init__()
        self._theme = theme
        self.message, self.note = message, ""
        self._siblings = siblings
        self._last, self._first, self._narrow = last, first, narrow
        self._n_ctx = n_ctx
        self._views: list[tuple[MarkdownView, int]] = []
        self._reasoning: MarkdownView | None = None
        self._phase: PhaseLabel | None = None
        self._editor: MessageEditor | None = None
        self._voice: IconButton | None = None
        unit = theme.tokens.unit
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, unit, 0, unit)
        self._column.setSpacing(unit // 2)
        if message.role == "user":
            self._build_question()
        else:
            self._build_answer(title)
        self._column.addStretch(1)

    def add_below_text(self, widget: QWidget) -> None:
        """Add a widget between the text and the actions."""
        self._column.insertWidget(self._column.indexOf(self._body) + 1, widget)

    def add_note(self, words: str) -> None:
        """Add a line below the text; none without words."""
        self.note = words
        if words:
            self.add_below_text(label(words, "small", wrap=True))

    @property
    def is_edited(self) -> bool:
        """Whether its editor is open."""
        return self._editor is not None

    @property
    def text_view(self) -> MarkdownView:
        """The view of the message's own text."""
        return self._body

    def append_text(self, content: str, reasoning: str) -> None:
        if reasoning:
            self._show_reasoning("")
            assert self._reasoning is not None
            self._reasoning.append_markdown(reasoning)
        if content:
            self._body.show()
            self._body.append_markdown(content)

    def show_phase(self, phase: GenerationPhase, began: float | None = None) -> None:
        """Show the phase of the response. `began` is the request's start time (monotonic clock)."""
        if self._phase is None:
            return
        if began is None:
            self._phase.show_phase(phase)
        else:
            self._phase.begin(began, phase)

    def show_voice(self, *, available: bool, is_read: bool) -> None:
        """Show the button that reads the answer aloud, or stops while it is read."""
        if self._voice is not None:
            self._voice.setVisible(available)
            self._voice.set_icon("stop" if is_read else "speaker", "accent" if is_read else "muted")
            self._voice.set_words(self.tr("Stop reading aloud") if is_read else self.tr("Read aloud"))

    def set_title(self, title: str) -> None:
        """Set the model's name when it becomes known later."""
        if self.message.role == "assistant":
            self._title.setText(title)
            self._title.setHidden(not title)

    def fit(self, width: int) -> int:
        """Lay out for this width. Returns the height."""
        for view, inset in self._views:
            available = width - inset
            if view is self._body and self.message.role == "user":
                available = min(available, self._bubble_width(width))
            view.fit_width(available)
        # Innermost first: a layout further out takes a frame's height as it was until that frame is laid out again.
        for frame in reversed(self.findChildren(QFrame)):
            if (inside := frame.layout()) is not None:
                inside.activate()
        self._column.invalidate()
        self._column.activate()
        return (
            self._column.totalHeightForWidth(width)
            if self._column.hasHeightForWidth()
            else self.sizeHint().height()
        )

    def _bubble_width(self, width: int) -> int:
        unit = self._theme.tokens.unit
        beside = width - self._tools.sizeHint().width() - unit
        widest = min(round(width * _BUBBLE_FRACTION), beside) - 4 * unit
        return min(widest, max(24, self._body.ideal_width()))

    def _add_view(self, text: str, inset: int = 0) -> MarkdownView:
        view = MarkdownView(self._theme)
        view.setAccessibleName(self.tr("Message text"))
        view.set_markdown(text)
        view.height_changed.connect(self.height_changed)
        self._views.append((view, inset))
        return view

    # -- user messages

    def _build_question(self) -> None:
        unit = self._theme.tokens.unit
        self._bubble = framed("bubble")
        self._body = MarkdownView(self._theme)
        content = self.message.content
        self._body.set_plain(folded(content))
        self._body.setAccessibleName(self.tr("Your message"))
        self._body.height_changed.connect(self.height_changed)
        self._views.append((self._body, 4 * unit))
        inside = stack(self._body, margins=(2 * unit, unit + 3, 2 * unit, unit - 2))
        if folded(content) != content:
            inside.addLayout(self._unfold())
        self._bubble.setLayout(inside)
        if self.message.attachments:
            chips = Flow()
            for item in self.message.attachments[:MOST_CHIPS]:
                chip = label(item.name, "chip")
                length = self.tr("{n} characters in the context").format(n=formatted.whole(len(item.text)))
                chip.setToolTip(formatted.plain_tip(length) if item.text else "")
                chips.add(chip)
            if more := self.message.attachments[MOST_CHIPS:]:
                chip = label(self.tr("{n} more files").format(n=formatted.whole(len(more))), "chip")
                chip.setToolTip(formatted.plain_tip("\n".join(item.name for item in more)))
                chips.add(chip)
            self._column.addLayout(row(1, chips))
        # Next to the bubble: below it they would take vertical space even while hidden.
        self._tools = QWidget()
        actions = row(spacing=2)
        self._add_branch_switch(actions)
        actions.addWidget(self._tool("edit", self.tr("Edit and ask again"), self.start_edit))
        actions.addWidget(self._copy_tool())
        actions.addWidget(self._more_tool())
        self._tools.setLayout(actions)
        line = row(1, spacing=unit)
        line.addWidget(self._tools, 0, Qt.AlignmentFlag.AlignBottom)
        line.addWidget(self._bubble)
        self._column.addLayout(line)
        self._update_tools()

    def _unfold(self) -> QLayout:
        """A button that shows more of a long message, and less again, and a note of what is not shown even then."""
        content = self.message.content
        more, note = button(self.tr("Show more"), None, "link"), label("", "small", wrap=True)
        hidden_chars = len(content) - _UNFOLDED
        words = self.tr("{n} more characters are not shown; Copy takes all")
        note.setText(words.format(n=formatted.whole(max(hidden_chars, 0))))
        note.hide()

        def show(*, opened: bool) -> None:
            self.unfolding.emit()
            self._body.set_plain(content[:_UNFOLDED] if opened else folded(content))
            more.setText(self.tr("Show less") if opened else self.tr("Show more"))
            note.setVisible(opened and hidden_chars > 0)
            self.height_changed.emit()

        more.setCheckable(True)
        more.toggled.connect(lambda opened: show(opened=opened))
        return stack(more, note, spacing=2)

    def enterEvent(self, event: QEnterEvent) -> None:
        """Show the tools of a user message while the pointer is over it."""
        super().enterEvent(event)
        self._update_tools()

    def leaveEvent(self, event: QEvent) -> None:
        """Hide the tools again."""
        super().leaveEvent(event)
        self._update_tools()

    def _update_tools(self) -> None:
        for tool in self.findChildren(IconButton) if self.message.role == "user" else ():
            tool.set_quiet(not self.underMouse())

    def start_edit(self) -> None:
        if self._editor is not None:
            return
        mine = self.message.role == "user"
        name = self.tr("Edit your message") if mine else self.tr("Edit this answer")
        accept = self.tr("Ask again") if mine else self.tr("Save")
        editor = MessageEditor(self._theme, self.message.content, name, accept)
        self._editor = editor
        shown = (self._bubble, self._tools) if mine else (self._body,)

        def close() -> None:
            editor.hide()
            editor.deleteLater()
            self._editor = None
            for widget in shown:
                widget.show()
            self.height_changed.emit()
            self.edit_ended.emit()

        def ask(text: str) -> None:
            close()
            (self.edited if mine else self.rewritten).emit(self.message.id, text)

        editor.closed.connect(close)
        editor.accepted.connect(ask)
        editor.height_changed.connect(self.height_changed)
        for widget in shown:
            widget.hide()
        self._column.insertWidget(self._column.count() - (1 if mine else 2), editor)
        editor.show()  # a layout gives no height to hidden widgets, and the height is needed now
        editor.setFocus()
        self.height_changed.emit()

    # -- responses

    def _build_answer(self, title: str) -> None:
        message = self.message
        self._title = label(title, "small")
        self._title.setContentsMargins(0, 0, 0, self._theme.tokens.unit // 2)
        self._column.addWidget(self._title)
        self._title.setHidden(not title)  # imported answers name no model
        self._reasoning_layout = QVBoxLayout()
        self._column.addLayout(self._reasoning_layout)
        if message.reasoning:
            self._show_reasoning(message.reasoning)
        self._body = self._add_view(_as_code(message.content) if message.status != "streaming" else message.content)
        self._body.setVisible(bool(message.content))
        self._column.addWidget(self._body)
        for call in message.facts.tool_calls:
            self._column.addWidget(self._tool_card(call))
        if message.status == "streaming":
            self._phase = PhaseLabel()
            self._column.addWidget(self._phase)
            return
        self._add_status()
        actions = row(spacing=2)
        self._add_branch_switch(actions)
        actions.addWidget(self._copy_tool())
        if message.content:
            self._voice = self._tool(
                "speaker", self.tr("Read aloud"), lambda: self.read_aloud.emit(message.id, message.content)
            )
            self._voice.hide()
            actions.addWidget(self._voice)
        actions.addWidget(self._tool("refresh", self.tr("Answer again"), lambda: self.regenerate.emit(message.id)))
        if self._last and message.content:
            actions.addWidget(
                self._tool("continue", self.tr("Continue this answer"), lambda: self.continued.emit(message.id))
            )
        actions.addWidget(self._more_tool())
        facts = answer_facts(message, self._n_ctx)
        if facts and self._narrow:
            self._column.addWidget(FactsLine(facts))
            actions.addStretch(1)
        elif facts:
            actions.addSpacing(self._theme.tokens.unit)
            shown = " · ".join(fact.replace(" ", "\u00a0") for fact in facts)  # lines break between facts only
            actions.addWidget(label(shown, "small", wrap=True), 1)
        else:
            actions.addStretch(1)
        self._column.addLayout(actions)

    def _add_status(self) -> None:
        message = self.message
        if message.status == "interrupted":
            note = label(self.tr("Interrupted: this is the text received so far."), "small", wrap=True)
            self._column.addWidget(note)
        ended = runaway_note(message)
        if ended and message.status == "complete":
            frame = framed("note")
            line = row(label(ended, "small", wrap=True), margins=(16, 8, 16, 8), grow=0)
            if self._last:
                line.addWidget(button(self.tr("Continue"), lambda: self.continued.emit(message.id)))
            frame.setLayout(line)
            self._column.addWidget(frame)
        if message.status != "error":
            return
        frame = framed("banner-bad")
        words = label(message.facts.error or self.tr("The answer failed."), wrap=True, selectable=True)
        column = stack(words, margins=(16, 12, 16, 12))
        remedies = [("retry", self.tr("Try again"))]
        if message.facts.error_code == "unreachable":
            remedies.append(("restart", self.tr("Start the server and try again")))
        if message.facts.error_code == "context_length_exceeded":
            remedies = [("edit", self.tr("Shorten the question"))]
            if not self._first:
                remedies = [
                    ("shorten", self.tr("Summarize the older messages")),
                    ("new", self.tr("Start a new chat with this question")),
                ]
        elif message.facts.pictures_sent and message.facts.error_code != "unreachable":
            remedies.append(("without_pictures", self.tr("Answer without the images")))
        buttons = Flow()
        for remedy, text in remedies:
            buttons.add(button(text, partial(self.fixed.emit, message.id, remedy)))
        column.addWidget(buttons)
        frame.setLayout(column)
        self._column.addWidget(frame)

    def _show_reasoning(self, text: str) -> None:
        if self._reasoning is not None:
            return
        inset = 2 * self._theme.tokens.unit
        fold = button("", None, "link")
        view = self._add_view(text, inset)
        self._reasoning = view

        def show(*, opened: bool) -> None:
            if self.message.status != "streaming":  # an answer that still grows is followed to its end
                self.unfolding.emit()
            view.setVisible(opened)
            fold.setText(self.tr("▾ Reasoning") if opened else self.tr("▸ Reasoning"))
            self.height_changed.emit()

        fold.setCheckable(True)
        fold.toggled.connect(lambda opened: show(opened=opened))
        show(opened=False)
        self._reasoning_layout.addWidget(fold)
        self._reasoning_layout.addLayout(row(view, margins=(inset, 0, 0, 0)))

    def _tool_card(self, call: ToolCall) -> QFrame:
        frame = framed("note")
        arguments = call.arguments
        try:
            arguments = json.dumps(json.loads(arguments), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            arguments = arguments or "{}"
        view = self._add_view(f"```json\n{arguments}\n```", 4 * self._theme.tokens.unit)
        frame.setLayout(
            stack(
                label(self.tr("Wants to call {name}").format(name=call.name or "?"), "strong"),
                view,
                margins=(16, 12, 16, 12),
            )
        )
        return frame

    # -- both roles

    def _add_branch_switch(self, actions: object) -> None:
        count = len(self._siblings)
        if count == 1:
            return
        at = self._siblings.index(self.message.id)
        back = self._tool(
            "left", self.tr("Earlier version"), lambda: self.switched.emit(self._siblings[at - 1]), steps=True
        )
        back.setEnabled(at > 0)
        forth = self._tool(
            "right", self.tr("Later version"), lambda: self.switched.emit(self._siblings[at + 1]), steps=True
        )
        forth.setEnabled(at < count - 1)
        for widget in (back, label(f"{at + 1}/{count}", "small"), forth):
            actions.addWidget(widget)  # type: ignore[attr-defined]  # a box layout

    def _more_tool(self) -> IconButton:
        tool: IconButton = self._tool("more", self.tr("More"), lambda: self.more().below(tool))
        return tool

    def more(self) -> Menu:
        """The menu of rarely used actions."""
        menu, number = Menu(self._theme, self), self.message.id
        if self.message.role == "assistant":
            menu.add("edit", self.tr("Edit this answer"), self.start_edit)
        if receipt := self.message.facts.receipt:
            text = msgspec.json.format(msgspec.json.encode(receipt), indent=1).decode()
            menu.add("copy", self.tr("Copy the receipt"), lambda: QGuiApplication.clipboard().setText(text))
        menu.add("split", self.tr("New chat from here"), lambda: self.forked.emit(number))
        menu.add("trash", self.tr("Delete from here on"), lambda: self.removed.emit(number), "bad")
        return menu

    def _copy_tool(self) -> IconButton:
        def copy() -> None:
            QGuiApplication.clipboard().setText(self.message.content)
            tool.set_icon("check", "ok")
            QTimer.singleShot(_DONE_MS, tool, lambda: tool.set_icon("copy", "muted"))

        tool = self._tool("copy", self.tr("Copy"), copy)
        return tool

    def _tool(self, icon: str, words: str, on_click: Callable[[], object], *, steps: bool = False) -> IconButton:
        control = IconButton(self._theme, icon, words, on_click, size=16, steps=steps)
        control.setCursor(Qt.CursorShape.PointingHandCursor)
        return control

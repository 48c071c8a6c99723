"""Shows the transcript of the open chat: the selected branch and its changes."""

from collections.abc import Callable

from PySide6.QtCore import QPoint, QRect, QSize, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QCheckBox, QFrame, QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

from app.compaction.plan import in_force, inside
from app.db.records import Message, Summary
from app.generation_phase import GenerationPhase
from app.gui import formatted
from app.gui.app_context import AppContext
from app.gui.chat.controller import ChatController
from app.gui.chat.memory import UsedMemory
from app.gui.chat.message_actions import MessageActions
from app.gui.chat.message_editor import MessageEditor
from app.gui.chat.message_widget import MessageWidget, folded
from app.gui.documents.citations import GroundsCard, SourcesCard
from app.gui.reasons import known_text
from app.gui.theme import Theme
from app.gui.widgets.basics import IconButton, button, framed, label, literal, row, set_kind, stack
from app.gui.widgets.virtual_list import Column, ColumnItem
from app.tools.types import shown_text

# A scrolling column of messages with a button that scrolls to the end.

_JUMP = 32  # side of the button that goes to the end, in pixels at the normal text size
# Height estimates before layout, in pixels. Measured: a line of body text holds about 95 characters.
_LINE_CHARACTERS, _LINE_PIXELS, _MESSAGE_PIXELS = 95, 23, 84


class Transcript(Column):
    """A column of messages by id."""

    def __init__(self, theme: Theme, make: Callable[[int], ColumnItem], estimate: Callable[[int], int]) -> None:
        super().__init__(make, estimate, width=theme.tokens.column)
        self._to_end = IconButton(theme, "down", self.tr("Go to the end"), self.scroll_to_end)
        self._to_end.setParent(self)
        self._to_end.setProperty("kind", "jump")
        self._theme = theme
        self._to_end.hide()
        self.at_end_changed.connect(self._on_at_end)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Move the floating button to its corner."""
        super().resizeEvent(event)
        self._scroll_to_end()

    def _on_at_end(self, at_end: bool) -> None:
        self._to_end.setVisible(not at_end)
        self._scroll_to_end()

    def _scroll_to_end(self) -> None:
        side = self._theme.tokens.scaled(_JUMP)
        corner = QPoint(self.rect().center().x() - side // 2, self.rect().bottom() - side - 8)
        self._to_end.setGeometry(QRect(corner, QSize(side, side)))
        self._to_end.raise_()


def estimated_height(message: Message) -> int:
    """Estimated height in pixels of a message that is not laid out yet."""
    text = folded(message.content) if message.role == "user" else message.content
    lines = text.count("\n") + len(text) // _LINE_CHARACTERS + 1
    return _MESSAGE_PIXELS + lines * _LINE_PIXELS


_FOLD_HEIGHT = 160  # estimate before layout
_PAIR_FACTOR = 1.6  # times the width of a single response


class ChatTranscript(Transcript):
    """Follows the messages of a controller. Responses of a second model are shown next to the first model's."""

    def __init__(
        self,
        services: AppContext,
        controller: ChatController,
        actions: MessageActions,
        note_of: Callable[[Message], str],
    ) -> None:
        """`note_of`: a line to show below a message's text; empty for none."""
        super().__init__(services.theme, self._item_of, self._height_of)
        self._services, self._controller, self._note_of = services, controller, note_of
        self._items = MessageItems(services, controller, actions, self.scroll_to, note_of)
        controller.message_changed.connect(self._on_changed)
        controller.text_arrived.connect(self._on_text)
        controller.phase_changed.connect(self._on_phase)
        controller.compactor.changed.connect(lambda: self.set_keys(self._items.keys()))
        services.theme.changed.connect(self._set_width)

    def show_branch(self, message_id: int = 0) -> None:
        """Show the current branch. Expands the summary that contains `message_id`."""
        if message_id:
            self._items.expand(message_id)
        self.set_keys(self._items.keys())

    def add_message(self, message_id: int) -> None:
        """Add a message at the end of the branch."""
        path = self._controller.tree.path()
        if len(path) > 1 and path[-1].id == message_id:
            for message in path[-3:-1]:  # the previous response is no longer the last one
                if message.role == "assistant":
                    self.rebuild(message.id)
        self.append(message_id)

    def pair_with(self, model: str) -> None:
        """Show responses of a second model next to those of the first; "" turns comparison off."""
        self._controller.second_model = model
        self._set_width()
        for message in self._controller.tree.path():
            if message.role == "assistant":
                self.rebuild(message.id)

    def offer_choice(self) -> None:
        """Both responses are complete: ask the user which one to continue with."""
        leaf = self._controller.tree.leaf_id
        if leaf is not None and self._controller.pair(leaf):
            self.rebuild(leaf)

    def show_titles(self) -> None:
        """Update the model names above the responses."""
        for item in self.items():
            for pane in _panes(item):
                pane.set_title(self._services.models.title(pane.message.model))

    def show_notes(self) -> None:
        """Update the notes below the messages."""
        for message in self._controller.tree.path():
            item = self.item(message.id)
            if item is not None and any(pane.note != self._note_of(pane.message) for pane in _panes(item)):
                self.rebuild(message.id)

    def pane(self, message_id: int) -> MessageWidget | None:
        """The widget of a message, alone or in a pair. None if it is not visible."""
        item = self.item(message_id)
        pane = item.pane(message_id) if isinstance(item, PairWidget) else item
        return pane if isinstance(pane, MessageWidget) else None

    def _on_changed(self, message_id: int) -> None:
        """Show the new state. An answer that is generated again is no longer edited."""
        self.rebuild(message_id, ends_edit=self._controller.tree[message_id].status == "streaming")

    def _on_text(self, message_id: int, content: str, reasoning: str) -> None:
        pane = self.pane(message_id)
        if pane is not None:
            pane.append_text(content, reasoning)

    def _on_phase(self, message_id: int, phase: GenerationPhase) -> None:
        pane = self.pane(message_id)
        if pane is not None:
            pane.show_phase(phase)

    def _set_width(self) -> None:
        """Use a wider column for two responses side by side."""
        factor = _PAIR_FACTOR if self._controller.second_model else 1
        self.set_width_limit(round(self._services.theme.tokens.column * factor))

    def _item_of(self, key: int) -> ColumnItem:
        return self._items.make(key)

    def _height_of(self, key: int) -> int:
        return _FOLD_HEIGHT if key < 0 else estimated_height(self._controller.tree[key])


def _panes(item: QWidget) -> list[MessageWidget]:
    """The widgets of the messages in an item."""
    return item.panes if isinstance(item, PairWidget) else [item] if isinstance(item, MessageWidget) else []


# Widgets for each kind of message: user message, response, pair of responses, tool result.


class FoldItem(ColumnItem):
    """Shows a summary of earlier messages. The user can read, edit or undo it, or send the originals instead."""

    shown = Signal(int, bool)  # show the originals in the transcript
    opened = Signal(int, bool)  # send the originals to the model
    rewritten = Signal(int, str)
    undone = Signal(int)

    def __init__(self, theme: Theme, fold: Summary, count: int, *, expanded: bool) -> None:
        super().__init__()
        self._theme, self._number = theme, fold.id
        unit = theme.tokens.unit
        words = self.tr("{n} earlier messages, summarized").format(n=count)
        if fold.edited:
            words += " · " + self.tr("edited")
        self.fold = button(
            ("▾ " if expanded else "▸ ") + words, lambda: self.shown.emit(fold.id, not expanded), "link"
        )
        self.fold.setAccessibleName(words)
        self.send = QCheckBox(self.tr("Send the original messages to the model"))
        self.send.setChecked(fold.opened)
        self.send.toggled.connect(lambda on: self.opened.emit(fold.id, on))
        edit = IconButton(theme, "edit", self.tr("Edit the summary"), self.start_edit, size=16)
        undo = IconButton(theme, "trash", self.tr("Undo this summary"), lambda: self.undone.emit(fold.id), size=16)
        self.text = label(fold.summary, "muted", wrap=True, selectable=True)
        frame = framed("note")
        margins = (2 * unit, unit, 2 * unit, unit)
        self._inner = stack(
            row(self.fold, 1, edit, undo, spacing=2), self.text, self.send, spacing=unit, margins=margins
        )
        frame.setLayout(self._inner)
        self._column = stack(frame, margins=(0, unit, 0, unit))
        self.setLayout(self._column)
        self.editor: MessageEditor | None = None

    @property
    def is_edited(self) -> bool:
        """Whether its editor is open."""
        return self.editor is not None

    def fit(self, width: int) -> int:
        """Lay out for this width. Returns the height."""
        self.text.setMinimumHeight(self.text.heightForWidth(width - 4 * self._theme.tokens.unit))
        self._column.activate()
        return max(self._column.totalHeightForWidth(width), self.sizeHint().height())

    def start_edit(self) -> None:
        if self.editor is not None:
            return
        editor = MessageEditor(self._theme, self.text.text(), self.tr("Edit the summary"), self.tr("Save"))
        self.editor = editor

        def close() -> None:
            editor.hide()
            editor.deleteLater()
            self.editor = None
            self.text.show()
            self.height_changed.emit()
            self.edit_ended.emit()

        def save(text: str) -> None:
            close()
            self.rewritten.emit(self._number, text)

        editor.closed.connect(close)
        editor.accepted.connect(save)
        editor.height_changed.connect(self.height_changed)
        self.text.hide()
        self._inner.insertWidget(1, editor)
        editor.show()
        editor.setFocus()
        self.height_changed.emit()


class MessageItems:
    """Creates the message widgets and connects their actions."""

    def __init__(
        self,
        services: AppContext,
        controller: ChatController,
        actions: MessageActions,
        scroll_to: Callable[[int], None],
        note_of: Callable[[Message], str],
    ) -> None:
        self._services, self._controller, self._actions = services, controller, actions
        self._scroll_to, self._note_of = scroll_to, note_of
        self._expanded: set[int] = set()

    def keys(self) -> list[int]:
        """Keys of the transcript items: message ids, and negated ids of summaries, with originals if expanded."""
        path = self._controller.tree.path()
        keys = [message.id for message in path]
        for fold in in_force(path, self._controller.compactor.folds):
            ids = [message.id for message in inside(path, fold)]
            at = keys.index(ids[0])
            keys[at : at + len(ids)] = [-fold.id, *(ids if fold.id in self._expanded else ())]
        return keys

    def expand(self, message_id: int) -> None:
        """Expand the summary that contains this message, if any."""
        path = self._controller.tree.path()
        for fold in in_force(path, self._controller.compactor.folds):
            if any(message.id == message_id for message in inside(path, fold)):
                self._expanded.add(fold.id)

    def make(self, key: int) -> ColumnItem:
        """Create the widget for a key: a message id or a negated summary id."""
        return self._fold(-key) if key < 0 else self._item(key)

    def _fold(self, fold_id: int) -> FoldItem:
        chat = self._controller
        fold = next(fold for fold in chat.compactor.folds if fold.id == fold_id)
        count = len(inside(chat.tree.path(), fold))
        item = FoldItem(self._services.theme, fold, count, expanded=fold_id in self._expanded)

        def show(number: int, shown: bool) -> None:
            self._expanded = self._expanded | {number} if shown else self._expanded - {number}
            chat.compactor.changed.emit()
            self._scroll_to(-number)

        item.shown.connect(show)
        item.opened.connect(lambda number, on: chat.compactor.set_opened(number, opened=on))
        item.rewritten.connect(chat.compactor.rewrite)
        item.undone.connect(chat.compactor.undo)
        return item

    def _item(self, message_id: int) -> ColumnItem:
        chat = self._controller
        if chat.tree[message_id].role == "tool":
            return ToolItem(self._services.theme, chat.tree[message_id])
        pair = chat.pair(message_id)
        if not pair:
            return self._message(message_id, chat.tree.siblings(message_id))
        second = self._services.models.get(chat.second_model)
        widget = PairWidget(
            self._services.theme,
            [self._message(answer, [answer], narrow=True) for answer in pair],
            second.title if second else chat.second_model,
            message_id,
            busy=chat.busy,
        )
        widget.picked.connect(chat.switch_branch)
        return widget

    def _message(self, message_id: int, siblings: list[int], *, narrow: bool = False) -> MessageWidget:
        chat = self._controller
        message = chat.tree[message_id]
        if message_id == chat.answering_id and chat.partial is not None:
            message = chat.partial
        choice = self._services.models.get(message.model)
        widget = MessageWidget(
            self._services.theme,
            message,
            siblings,
            last=chat.tree.leaf_id == message_id,
            title=choice.title if choice else message.model,
            n_ctx=choice.n_ctx if choice else 0,
            first=len(chat.tree.path()) <= 2,  # noqa: PLR2004 - a user message and its response
            narrow=narrow,
        )
        grounds = message.facts.grounds
        if grounds is not None:
            widget.add_below_text(GroundsCard(self._services, grounds, message.content))
        if message.facts.memories:
            widget.add_below_text(UsedMemory(self._services, message.facts.memories))
        if message.facts.sources:
            widget.add_below_text(SourcesCard(message.facts.sources))
        widget.add_note(self._note_of(message))
        if message_id == chat.answering_id or message.status == "streaming":
            widget.show_phase(*chat.phase)
        self._actions.follow(widget)
        return widget


_MAX_HEIGHT = 260


class ToolItem(ColumnItem):
    """A tool result, collapsed at first. Shown as plain text: tools cannot format, link or load anything."""

    def __init__(self, theme: Theme, message: Message) -> None:
        super().__init__()
        self.message = message
        unit = theme.tokens.unit
        self._words = self._title()
        self.fold = button("", None, "link")
        self.fold.setCheckable(True)
        self.fold.toggled.connect(lambda opened: self._show(opened=opened))
        self.text = QPlainTextEdit(readOnly=True)
        theme.dress(self.text, "small")
        self.text.setPlainText(shown_text(message.content))
        self.text.setAccessibleName(self.tr("Result of the tool"))
        self.text.setFixedHeight(_MAX_HEIGHT)
        frame = QFrame()
        set_kind(frame, "note")
        frame.setLayout(stack(self.fold, self.text, margins=(2 * unit, unit // 2, 2 * unit, unit // 2)))
        self._column = stack(frame, margins=(0, unit // 2, 0, unit // 2))
        self.setLayout(self._column)
        self._show(opened=False)

    def fit(self, width: int) -> int:
        """Lay out for this width. Returns the height."""
        del width
        self._column.activate()
        return self.sizeHint().height()

    def _title(self) -> str:
        facts = self.message.facts
        took = self.tr("{n} s").format(n=formatted.decimal(facts.seconds, 2)) if facts.seconds is not None else ""
        state = "" if facts.ok else self.tr("failed or declined")
        return " · ".join(filter(None, (known_text(facts.tool or "?"), took, state)))

    def _show(self, *, opened: bool) -> None:
        self.unfolding.emit()
        self.text.setVisible(opened)
        self.fold.setText(("▾ " if opened else "▸ ") + literal(self._words))
        self.fold.setAccessibleName(self._words)
        self.height_changed.emit()


class PairWidget(ColumnItem):
    """The responses of two models, the first one on the left. The chat continues from `chosen_id`."""

    picked = Signal(int)

    def __init__(
        self, theme: Theme, panes: list[MessageWidget], waiting: str, chosen_id: int, *, busy: bool
    ) -> None:
        super().__init__()
        self._gap = 2 * theme.tokens.unit
        self.panes = panes
        self._inset = 2 * theme.tokens.unit
        self._feet: list[QWidget] = []
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, theme.tokens.unit, 0, theme.tokens.unit)
        layout.setSpacing(self._gap)
        for pane in panes:
            pane.height_changed.connect(self.height_changed)
            pane.unfolding.connect(self.unfolding)
            pane.edit_ended.connect(self.edit_ended)
            layout.addWidget(self._framed(pane, chosen_id, busy=busy), 1)
        if len(panes) == 1:
            note = label(self.tr("Waits for the first answer, so that both run at full speed"), "muted", wrap=True)
            holder = framed("card")
            holder.setLayout(stack(label(waiting, "small"), note, 1, spacing=4, margins=(16, 16, 16, 16)))
            layout.addWidget(holder, 1)

    @property
    def is_edited(self) -> bool:
        """Whether the editor of a half is open."""
        return any(pane.is_edited for pane in self.panes)

    def pane(self, message_id: int) -> MessageWidget | None:
        """The half that shows this message, or None."""
        return next((pane for pane in self.panes if pane.message.id == message_id), None)

    def fit(self, width: int) -> int:
        """Lay out both halves for their share of this width. Returns the height."""
        half = (width - self._gap) // 2
        tallest = 0
        for pane in self.panes:
            tallest = max(tallest, pane.fit(half - 2 * self._inset))
        layout = self.layout()
        assert layout is not None
        layout.invalidate()
        layout.activate()
        margins = layout.contentsMargins()
        foot = 0
        for control in self._feet:
            control.ensurePolished()  # otherwise the button's size hint is not known yet
            foot = max(foot, control.sizeHint().height())
        return tallest + foot + 2 * self._gap + margins.top() + margins.bottom()

    def _framed(self, pane: MessageWidget, chosen_id: int, *, busy: bool) -> QFrame:
        frame = framed("card")
        column = QVBoxLayout()
        column.setContentsMargins(self._inset, self._gap // 2, self._inset, self._gap // 2)
        column.setSpacing(self._gap // 2)
        column.addWidget(pane)
        column.addStretch(1)
        if len(self.panes) > 1 and not busy:
            if pane.message.id == chosen_id:
                foot: QWidget = label(self.tr("The chat continues from here"), "chip-ok")
            else:
                foot = button(self.tr("Continue from here"), lambda: self.picked.emit(pane.message.id))
            column.addLayout(row(foot, 1))
            self._feet.append(foot)
        frame.setLayout(column)
        return frame

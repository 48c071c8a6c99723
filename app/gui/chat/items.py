"""What is in the transcript for each message: a question, an answer, a pair of answers, a tool's result."""

from collections.abc import Callable

from app.compaction.plan import in_force, inside
from app.gui.app_context import Services
from app.gui.chat.compare_widget import PairWidget
from app.gui.chat.controller import ChatController
from app.gui.chat.message_actions import MessageActions
from app.gui.chat.message_widget import MessageWidget
from app.gui.chat.summary_item import FoldItem
from app.gui.documents.citations import GroundsCard
from app.gui.widgets.virtual_list import ColumnItem


class MessageItems:
    """Makes the widgets of messages and connects them with what can be done."""

    def __init__(
        self,
        services: Services,
        controller: ChatController,
        actions: MessageActions,
        scroll_to: Callable[[int], None],
    ) -> None:
        self._services, self._controller, self._actions = services, controller, actions
        self._scroll_to = scroll_to
        self._expanded: set[int] = set()

    def keys(self) -> list[int]:
        """What is in the transcript: ids of messages, and of folds below zero, some with their originals."""
        path = self._controller.tree.path()
        found = [message.id for message in path]
        for fold in in_force(path, self._controller.compactor.folds):
            ids = [message.id for message in inside(path, fold)]
            at = found.index(ids[0])
            found[at : at + len(ids)] = [-fold.id, *(ids if fold.id in self._expanded else ())]
        return found

    def expand(self, message_id: int) -> None:
        """Show a message in the transcript, in whichever fold it is."""
        path = self._controller.tree.path()
        for fold in in_force(path, self._controller.compactor.folds):
            if any(message.id == message_id for message in inside(path, fold)):
                self._expanded.add(fold.id)

    def make(self, key: int) -> ColumnItem:
        """The widget at this place of the branch shown."""
        return self._fold(-key) if key < 0 else self._item(key)

    def _fold(self, fold_id: int) -> FoldItem:
        chat = self._controller
        fold = next(fold for fold in chat.compactor.folds if fold.id == fold_id)
        count = len(inside(chat.tree.path(), fold))
        made = FoldItem(self._services.theme, fold, count, expanded=fold_id in self._expanded)

        def show(number: int, shown: bool) -> None:
            self._expanded = self._expanded | {number} if shown else self._expanded - {number}
            chat.compactor.changed.emit()
            self._scroll_to(-number)

        made.shown.connect(show)
        made.opened.connect(lambda number, on: chat.compactor.set_opened(number, opened=on))
        made.rewritten.connect(chat.compactor.rewrite)
        made.undone.connect(chat.compactor.undo)
        return made

    def _item(self, message_id: int) -> ColumnItem:
        chat = self._controller
        if chat.tree[message_id].role == "tool":
            from app.gui.chat.tool_item import ToolItem  # noqa: PLC0415 - not before the window is shown

            return ToolItem(self._services.theme, chat.tree[message_id])
        pair = chat.pair(message_id)
        if not pair:
            return self._message(message_id, chat.tree.siblings(message_id))
        second = self._services.models.get(chat.second_model)
        made = PairWidget(
            self._services.theme,
            [self._message(answer, [answer], narrow=True) for answer in pair],
            second.title if second else chat.second_model,
            message_id,
            busy=chat.busy,
        )
        made.picked.connect(chat.switch_branch)
        return made

    def _message(self, message_id: int, siblings: list[int], *, narrow: bool = False) -> MessageWidget:
        chat = self._controller
        message = chat.tree[message_id]
        if message_id == chat.answering_id and chat.partial is not None:
            message = chat.partial
        choice = self._services.models.get(message.model)
        made = MessageWidget(
            self._services.theme,
            message,
            siblings,
            last=chat.tree.leaf_id == message_id,
            title=choice.title if choice else message.model,
            n_ctx=choice.n_ctx if choice else 0,
            first=len(chat.tree.path()) <= 2,  # noqa: PLR2004 - a question and its answer
            narrow=narrow,
        )
        grounds = message.facts.grounds
        if grounds is not None:
            made.add_below_text(GroundsCard(self._services, grounds, message.content))
        if message_id == chat.answering_id or message.status == "streaming":
            made.show_phase(*chat.phase)
        self._actions.follow(made)
        return made

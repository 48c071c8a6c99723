"""What stands in the transcript for each message: a question, an answer, a pair of answers, a tool's result."""

from app.gui.chat.controller import ChatController
from app.gui.chat.message_actions import MessageActions
from app.gui.chat.message_widget import MessageWidget
from app.gui.chat.pair_widget import PairWidget
from app.gui.chat.tool_item import ToolItem
from app.gui.services import Services
from app.gui.widgets.column import ColumnItem


class MessageItems:
    """Makes the widgets of messages and connects them with what can be done."""

    def __init__(self, services: Services, controller: ChatController, actions: MessageActions) -> None:
        self._services, self._controller, self._actions = services, controller, actions

    def make(self, message_id: int) -> ColumnItem:
        """The widget at this place of the branch shown."""
        chat = self._controller
        if chat.tree[message_id].role == "tool":
            return ToolItem(self._services.look, chat.tree[message_id])
        pair = chat.pair(message_id)
        if not pair:
            return self._message(message_id, chat.tree.siblings(message_id))
        second = self._services.models.get(chat.second_model)
        made = PairWidget(
            self._services.look,
            [self._message(answer, [answer]) for answer in pair],
            second.title if second else chat.second_model,
            message_id,
            busy=chat.busy,
        )
        made.picked.connect(chat.switch_branch)
        return made

    def _message(self, message_id: int, siblings: list[int]) -> MessageWidget:
        chat = self._controller
        message = chat.tree[message_id]
        if message_id == chat.answering_id and chat.partial is not None:
            message = chat.partial
        choice = self._services.models.get(message.model)
        made = MessageWidget(
            self._services.look,
            message,
            siblings,
            last=chat.tree.leaf_id == message_id,
            title=choice.title if choice else message.model,
            n_ctx=choice.n_ctx if choice else 0,
            first=len(chat.context_path()) <= 2,  # noqa: PLR2004 - a question and its answer
        )
        if message_id == chat.answering_id or message.status == "streaming":
            made.show_phase(*chat.phase)
        self._actions.follow(made)
        return made

"""The transcript of the open chat: the branch shown, as the conversation grows and changes."""

from app.generation_phase import Phase
from app.gui.app_context import Services
from app.gui.chat.compare_widget import PairWidget
from app.gui.chat.controller import ChatController
from app.gui.chat.items import MessageItems
from app.gui.chat.message_actions import MessageActions
from app.gui.chat.message_widget import MessageWidget
from app.gui.chat.transcript import Transcript, estimated_height
from app.gui.widgets.virtual_list import ColumnItem

_FOLD_HEIGHT = 160  # before it is laid out
_PAIR_FACTOR = 1.6  # of the width of one answer


class ChatTranscript(Transcript):
    """Follows the messages of a controller; with a second model its answers stand beside the first one's."""

    def __init__(self, services: Services, controller: ChatController, actions: MessageActions) -> None:
        super().__init__(services.theme, self._item_of, self._height_of)
        self._services, self._controller = services, controller
        self._items = MessageItems(services, controller, actions, self.scroll_to)
        controller.message_changed.connect(self.rebuild)
        controller.text_arrived.connect(self._on_text)
        controller.phase_changed.connect(self._on_phase)
        controller.compactor.changed.connect(lambda: self.set_keys(self._items.keys()))
        services.theme.changed.connect(self._set_width)

    def show_branch(self, message_id: int = 0) -> None:
        """The branch that is open now; the fold of this message is opened."""
        if message_id:
            self._items.expand(message_id)
        self.set_keys(self._items.keys())

    def add_message(self, message_id: int) -> None:
        """A message at the end of the branch."""
        path = self._controller.tree.path()
        if len(path) > 1 and path[-1].id == message_id:
            for message in path[-3:-1]:  # the earlier answer is not the last any more
                if message.role == "assistant":
                    self.rebuild(message.id)
        self.append(message_id)

    def pair_with(self, model: str) -> None:
        """Show answers of this second model beside those of the first; none if empty."""
        self._controller.second_model = model
        self._set_width()
        for message in self._controller.tree.path():
            if message.role == "assistant":
                self.rebuild(message.id)

    def offer_choice(self) -> None:
        """Both answers are there: ask which one to continue with."""
        leaf = self._controller.tree.leaf_id
        if leaf is not None and self._controller.pair(leaf):
            self.rebuild(leaf)

    def show_titles(self) -> None:
        """Name the models of the answers as they are called now."""
        for item in self.items():
            for pane in item.panes if isinstance(item, PairWidget) else [item]:
                if isinstance(pane, MessageWidget):
                    pane.set_title(self._services.models.title(pane.message.model))

    def pane(self, message_id: int) -> MessageWidget | None:
        """The widget of a message, alone or in a pair; None where it is not in sight."""
        item = self.item(message_id)
        pane = item.pane(message_id) if isinstance(item, PairWidget) else item
        return pane if isinstance(pane, MessageWidget) else None

    def _on_text(self, message_id: int, content: str, reasoning: str) -> None:
        pane = self.pane(message_id)
        if pane is not None:
            pane.append_text(content, reasoning)

    def _on_phase(self, message_id: int, phase: Phase) -> None:
        pane = self.pane(message_id)
        if pane is not None:
            pane.show_phase(phase)

    def _set_width(self) -> None:
        """Two answers side by side take more room."""
        factor = _PAIR_FACTOR if self._controller.second_model else 1
        self.set_width_limit(round(self._services.theme.tokens.column * factor))

    def _item_of(self, key: int) -> ColumnItem:
        return self._items.make(key)

    def _height_of(self, key: int) -> int:
        return _FOLD_HEIGHT if key < 0 else estimated_height(self._controller.tree[key])

"""Conversations that responses continue and extend, stored in memory like responses."""

import time
from collections import OrderedDict
from typing import Any, Final

from engine.core.errors import InputFault
from engine.core.ownership import first_to_go, may_see, new_id, request_owner
from engine.server.response_store.responses import ResponseNotFound, size_of

MAX_CONVERSATIONS: Final = 512
MAX_BYTES: Final = 64 << 20


class ConversationNotFound(ResponseNotFound):
    """No conversation has this id. They are lost when the server stops; the oldest are evicted earlier."""

    code = "conversation_not_found"

    def __init__(self, conversation_id: str) -> None:
        InputFault.__init__(self, f"There is no conversation {conversation_id!r}.", "conversation")


class ItemNotInConversation(ResponseNotFound):
    """The conversation has no item with this id."""

    code = "item_not_found"

    def __init__(self, item_id: str) -> None:
        InputFault.__init__(self, f"There is no item {item_id!r} in this conversation.", "item_id")


class ConversationFull(InputFault):
    """The items exceed the limit of one conversation."""

    code = "conversation_full"

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            f"The conversation would take {size_bytes / (1 << 20):.1f} MiB of memory; the limit is "
            f"{MAX_BYTES / (1 << 20):.0f} MiB. Start another conversation, or delete items of this one.",
            "items",
        )


class Conversation:
    """One conversation. `size_bytes` counts its items; the routes limit all other fields."""

    def __init__(self, metadata: dict[str, str]) -> None:
        self.id = new_id("conv", "_")
        self.owner = request_owner.get()
        self.created_at = int(time.time())
        self.metadata = metadata
        self.items: list[dict[str, Any]] = []
        self.size_bytes = 0

    def require_capacity(self, items: list[dict[str, Any]]) -> None:
        """Raises: ConversationFull: with these items it would exceed the limit of all conversations together."""
        size = self.size_bytes + size_of(items)
        if size > MAX_BYTES:
            raise ConversationFull(size)

    def take_out(self, item_id: str) -> None:
        """Delete an item. Raises: ItemNotInConversation."""
        removed = self.find(item_id)
        self.items.remove(removed)
        self.size_bytes -= size_of([removed])

    def payload(self) -> dict[str, Any]:
        """The conversation in OpenAI's format, without its items, which have a separate route."""
        head = {"id": self.id, "object": "conversation", "created_at": self.created_at}
        return {**head, "metadata": self.metadata}

    def find(self, item_id: str) -> dict[str, Any]:
        """The item with this id. Raises: ItemNotInConversation."""
        match = next((item for item in self.items if item["id"] == item_id), None)
        if match is None:
            raise ItemNotInConversation(item_id)
        return match


class ConversationStore:
    """The most recently used conversations within the limits."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, Conversation] = OrderedDict()

    def get(self, conversation_id: str) -> Conversation:
        """The conversation with this id. Raises: ConversationNotFound."""
        conversation = self._stored.get(conversation_id)
        if conversation is None or not may_see(conversation.owner):
            raise ConversationNotFound(conversation_id)
        return conversation

    def put(self, conversation: Conversation) -> None:
        self._stored[conversation.id] = conversation
        self._bound()

    def add(self, conversation: Conversation, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Append items, each with an id. A deleted conversation is not stored again."""
        with_ids = [stored_item(item) for item in items]
        conversation.items += with_ids
        conversation.size_bytes += sum(size_of([item]) for item in with_ids)
        if conversation.id in self._stored:
            self._stored.move_to_end(conversation.id)
            self._bound()
        return with_ids

    def remove(self, conversation_id: str) -> None:
        """Delete a conversation. Raises: ConversationNotFound."""
        self.get(conversation_id)
        del self._stored[conversation_id]

    def _bound(self) -> None:
        total = sum(c.size_bytes for c in self._stored.values())
        while self._stored and (len(self._stored) > MAX_CONVERSATIONS or total > MAX_BYTES):
            total -= self._stored.pop(first_to_go(self._stored, MAX_BYTES // MAX_CONVERSATIONS)).size_bytes


def stored_item(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is stored and listed: in the format of OpenAI's reference, with an id."""
    with_id = item if isinstance(item.get("id"), str) else {**item, "id": new_id("item", "_")}
    if with_id.get("type", "message") != "message":
        return with_id
    stored = {"type": "message", "status": "completed", **with_id}
    if isinstance(stored.get("content"), str):
        answer = stored.get("role") == "assistant"
        extra: dict[str, Any] = {"annotations": [], "logprobs": []} if answer else {}
        stored["content"] = [
            {"type": "output_text" if answer else "input_text", "text": stored["content"], **extra}
        ]
    return stored

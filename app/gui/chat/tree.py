"""A conversation as a tree of messages: every edit and every new answer is a branch, and all are kept."""

from collections.abc import Iterable

from app.db.records import Message


class MessageTree:
    """Messages by id, with the branch that is shown."""

    def __init__(self, messages: Iterable[Message] = (), leaf_id: int | None = None) -> None:
        self._messages: dict[int, Message] = {}
        self._children: dict[int | None, list[int]] = {}
        for message in messages:
            self._insert(message)
        if leaf_id not in self._messages:
            leaf_id = max(self._messages, default=None)
        self.leaf_id = leaf_id

    def __contains__(self, message_id: int) -> bool:
        return message_id in self._messages

    def __getitem__(self, message_id: int) -> Message:
        return self._messages[message_id]

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: Message) -> None:
        """Add a message and show its branch."""
        self._insert(message)
        self.leaf_id = message.id

    def replace(self, message: Message) -> None:
        """The same message in a new state."""
        self._messages[message.id] = message

    def path(self) -> list[Message]:
        """The messages of the branch shown, first to last."""
        found: list[Message] = []
        current = self.leaf_id
        while current is not None:
            message = self._messages[current]
            found.append(message)
            current = message.parent_id if message.parent_id in self._messages else None
        return found[::-1]

    def siblings(self, message_id: int) -> list[int]:
        """The alternatives at this place, oldest first, the message itself among them."""
        return self._children[self._parent(message_id)]

    def switch(self, message_id: int) -> None:
        """Show the branch through this message, to the newest message below it."""
        current = message_id
        while self._children.get(current):
            current = self._children[current][-1]
        self.leaf_id = current

    def _parent(self, message_id: int) -> int | None:
        parent = self._messages[message_id].parent_id
        return parent if parent in self._messages else None

    def _insert(self, message: Message) -> None:
        self._messages[message.id] = message
        self._children.setdefault(self._parent(message.id), []).append(message.id)


def pair_of(tree: MessageTree, message_id: int, second_model: str, *, wanted: bool) -> list[int]:
    """The answers to one question that belong side by side, first model first; empty when there is no pair.

    `wanted`: the second model will answer the last question too.
    """
    if tree[message_id].role != "assistant":
        return []
    siblings = tree.siblings(message_id)
    seconds = [i for i in siblings if tree[i].model == second_model]
    firsts = [i for i in siblings if tree[i].model != second_model]
    if message_id in seconds:
        return [firsts[-1], message_id] if firsts else []
    if seconds:
        return [message_id, seconds[-1]]
    return [message_id] if wanted and message_id == tree.leaf_id else []

"""A conversation as a tree of messages. Every edit and every retry is a branch."""

from collections.abc import Iterable

from app.db.records import Message


class MessageTree:
    """Messages by id, with the visible branch."""

    def __init__(self, messages: Iterable[Message] = (), leaf_id: int | None = None) -> None:
        self._messages: dict[int, Message] = {}
        self._children: dict[int | None, list[int]] = {}
        self._path: tuple[int | None, list[Message]] | None = None  # of its leaf, until something changes
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
        """Replace a message by its new state."""
        self._messages[message.id] = message
        self._path = None

    def path(self) -> list[Message]:
        """The messages of the visible branch, first to last."""
        if self._path is not None and self._path[0] == self.leaf_id:
            return list(self._path[1])
        messages: list[Message] = []
        current = self.leaf_id
        while current is not None:
            message = self._messages[current]
            messages.append(message)
            current = message.parent_id if message.parent_id in self._messages else None
        messages.reverse()
        self._path = (self.leaf_id, messages)
        return list(messages)

    def siblings(self, message_id: int) -> list[int]:
        """The alternatives to this message, oldest first, including itself."""
        return self._children[self._parent(message_id)]

    def switch(self, message_id: int) -> None:
        """Show the branch through this message, down to its newest descendant."""
        current = message_id
        while self._children.get(current):
            current = self._children[current][-1]
        self.leaf_id = current

    def _parent(self, message_id: int) -> int | None:
        parent = self._messages[message_id].parent_id
        return parent if parent in self._messages else None

    def _insert(self, message: Message) -> None:
        self._path = None
        self._messages[message.id] = message
        self._children.setdefault(self._parent(message.id), []).append(message.id)


def pair_of(tree: MessageTree, message_id: int, second_model: str, *, has_second: bool) -> list[int]:
    """Responses to show side by side, first model first. Empty if there is no pair.

    `has_second`: the second model will also respond to the last message.
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
    return [message_id] if has_second and message_id == tree.leaf_id else []

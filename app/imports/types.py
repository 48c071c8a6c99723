"""A chat as it comes out of an export, whatever program wrote it."""

from dataclasses import dataclass, field
from typing import Any, Literal


class ImportFailed(Exception):
    """The file is not an export of chats; `reason` says where it departs from one."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"This file cannot be imported: {reason}.")
        self.reason = reason


@dataclass(frozen=True)
class Message:
    """One message. `key` and `parent` are the export's own names; a message stands behind its parent."""

    key: str
    parent: str | None
    role: Literal["user", "assistant"]
    text: str
    reasoning: str = ""
    model: str = ""
    documents: tuple[tuple[str, str], ...] = ()  # name, text
    left_out: tuple[str, ...] = ()  # what was there and could not be taken


@dataclass(frozen=True)
class Chat:
    """A chat with all its branches; `leaf` is the message at the end of the one shown."""

    title: str
    messages: tuple[Message, ...]
    leaf: str | None = None
    model: str = ""
    system_prompt: str = ""


@dataclass
class Branches:
    """Messages put in order: parents first, those that are not shown (system, tools, empty) skipped over."""

    rows: dict[str, tuple[str | None, Message | None]] = field(default_factory=dict)

    def add(self, key: str, parent: str | None, message: Message | None) -> None:
        """A node of the export; None where it holds nothing to show."""
        self.rows[key] = (parent, message)

    def shown(self, key: str | None) -> str | None:
        """The nearest message at or above a node that is shown."""
        seen: set[str] = set()
        while key is not None and key in self.rows and key not in seen:
            seen.add(key)
            parent, message = self.rows[key]
            if message is not None:
                return key
            key = parent
        return None

    def ordered(self) -> tuple[Message, ...]:
        """Every message behind its parent. Nodes in a circle stand for themselves."""
        done: dict[str, Message] = {}
        for key in self.rows:
            chain: list[str] = []
            current = self.shown(key)
            while current is not None and current not in done and current not in chain:
                chain.append(current)
                current = self.shown(self.rows[current][0])
            for name in reversed(chain):
                message = self.rows[name][1]
                assert message is not None  # `shown` names messages only
                parent = self.shown(self.rows[name][0])
                done[name] = Message(
                    name,
                    parent if parent in done else None,
                    message.role,
                    message.text,
                    message.reasoning,
                    message.model,
                    message.documents,
                    message.left_out,
                )
        return tuple(done.values())


def text_of(value: Any) -> str:
    """Text, or nothing where it is something else."""
    return value if isinstance(value, str) else ""


def rows_of(value: Any) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def table_of(value: Any) -> dict[str, Any]:
    """An object, or an empty one."""
    return value if isinstance(value, dict) else {}

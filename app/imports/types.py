"""A chat from an export, in the same form for all programs."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal


class ImportFailed(Exception):
    """The file is not an export of chats; `reason` describes the problem."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"This file cannot be imported: {reason}.")
        self.reason = reason


@dataclass(frozen=True)
class Message:
    """One message. `key` and `parent` are ids of the export; a message follows its parent."""

    key: str
    parent: str | None
    role: Literal["user", "assistant"]
    text: str
    reasoning: str = ""
    model: str = ""
    documents: tuple[tuple[str, str], ...] = ()  # name, text
    left_out: tuple[str, ...] = ()  # contents that could not be imported
    created_s: float | None = None  # None: the export has no date


@dataclass(frozen=True)
class Chat:
    """A chat with all its branches; `leaf` is the last message of the visible branch."""

    title: str
    messages: tuple[Message, ...]
    leaf: str | None = None
    model: str = ""
    system_prompt: str = ""
    created_s: float | None = None  # time of the last change if the export has it; None: the export has no date


@dataclass
class Branches:
    """Orders messages, parents first; skips messages that are not shown (system, tools, empty)."""

    rows: dict[str, tuple[str | None, Message | None]] = field(default_factory=dict)
    # Cached results of `shown`, so that a long chain of hidden nodes is walked only once.
    _visible_parent: dict[str, str | None] = field(default_factory=dict)

    def add(self, key: str, parent: str | None, message: Message | None) -> None:
        """Add a node of the export; `message` is None if it has nothing to show."""
        self.rows[key] = (parent, message)
        self._visible_parent.clear()

    def shown(self, key: str | None) -> str | None:
        """The nearest visible message at a node or above it."""
        walked: list[str] = []
        visible: str | None = None
        while key is not None and key in self.rows:
            if key in self._visible_parent:
                visible = self._visible_parent[key]
                break
            self._visible_parent[key] = None  # until it is known: a cycle shows nothing
            walked.append(key)
            parent, message = self.rows[key]
            if message is not None:
                visible = key
                break
            key = parent
        self._visible_parent |= dict.fromkeys(walked, visible)
        return visible

    def ordered(self) -> tuple[Message, ...]:
        """All messages, each after its parent. In a cycle, the first node gets no parent."""
        done: dict[str, Message] = {}
        for key in self.rows:
            chain: dict[str, None] = {}
            current = self.shown(key)
            while current is not None and current not in done and current not in chain:
                chain[current] = None
                current = self.shown(self.rows[current][0])
            for name in reversed(chain):
                message = self.rows[name][1]
                assert message is not None  # `shown` returns only keys of messages
                parent = self.shown(self.rows[name][0])
                done[name] = replace(message, key=name, parent=parent if parent in done else None)
        return tuple(done.values())


def text_of(value: Any) -> str:
    """Return a string unchanged; "" for any other type."""
    return value if isinstance(value, str) else ""


def rows_of(value: Any) -> list[dict[str, Any]]:
    """Return the dicts of a list; an empty list for any other type."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def table_of(value: Any) -> dict[str, Any]:
    """Return a dict unchanged; an empty dict for any other type."""
    return value if isinstance(value, dict) else {}


# Larger numbers are milliseconds. As seconds, this is the year 5138.
_MOST_S: Final = 1e11
_FIRST_S: Final = 946_684_800  # 2000-01-01: earlier dates are placeholders


def date_of(*values: Any) -> float | None:
    """Seconds since 1970 of the first valid date: seconds, milliseconds or ISO 8601. None if there is none."""
    for value in values:
        seconds: float | None = None
        if isinstance(value, str):
            try:
                read = datetime.fromisoformat(value)
                seconds = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
            except (ValueError, OverflowError):
                continue
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / 1000 if _MOST_S < value < 1000 * _MOST_S else value
        if seconds is not None and _FIRST_S <= seconds < _MOST_S:
            return float(seconds)
    return None

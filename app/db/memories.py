"""Facts that chats remember. All functions run on the store's single thread."""

import time
from typing import Final

import apsw

from app.db.records import Memory

MAX_MEMORIES: Final = 1000
MAX_MEMORY_CHARS: Final = 500


class MemoryRefused(Exception):
    """A fact that cannot be stored; the message says why."""


def memories(connection: apsw.Connection) -> list[Memory]:
    """All facts, the newest first."""
    rows = connection.execute("SELECT id, text, folder_id, created_s FROM memories ORDER BY id DESC")
    return [Memory(*row) for row in rows]


def memories_for(connection: apsw.Connection, folder_id: int | None) -> list[Memory]:
    """Facts for a chat: the global ones, and those of its project."""
    return [memory for memory in memories(connection) if memory.folder_id in {None, folder_id}]


def add_memory(connection: apsw.Connection, text: str, folder_id: int | None = None) -> Memory:
    """Store a fact, globally or for a project; return it if it exists already. Raises: MemoryRefused."""
    text = checked(text)
    stored = memories(connection)
    for memory in stored:
        if memory.text.casefold() == text.casefold() and memory.folder_id in {None, folder_id}:
            return memory
    if len(stored) >= MAX_MEMORIES:
        raise MemoryRefused(f"There are {MAX_MEMORIES} facts already; delete some first.")
    connection.execute(
        "INSERT INTO memories(text, folder_id, created_s) VALUES (?, ?, ?)", (text, folder_id, time.time())
    )
    return next(memory for memory in memories(connection) if memory.id == connection.last_insert_rowid())


def change_memory(connection: apsw.Connection, memory_id: int, text: str, folder_id: int | None) -> None:
    """Replace the text and the project of a fact. Raises: MemoryRefused."""
    connection.execute(
        "UPDATE memories SET text = ?, folder_id = ? WHERE id = ?", (checked(text), folder_id, memory_id)
    )


def remove_memory(connection: apsw.Connection, memory_id: int) -> None:
    """Delete a fact."""
    connection.execute("DELETE FROM memories WHERE id = ?", (memory_id,))


def checked(text: object) -> str:
    """A fact on one line. Raises: MemoryRefused: no text, or too long."""
    words = " ".join(text.split()) if isinstance(text, str) else ""
    if not words or len(words) > MAX_MEMORY_CHARS:
        raise MemoryRefused(f"A fact is text of 1 to {MAX_MEMORY_CHARS} characters.")
    return words

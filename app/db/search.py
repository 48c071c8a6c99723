"""Full-text search over all chats."""

import re

import apsw

from app.db.records import Hit

_WORD = re.compile(r"\w+")


def search(connection: apsw.Connection, text: str, limit: int = 50) -> list[Hit]:
    """Messages that contain every word of `text` (the last as a beginning), newest first.

    Anything typed is safe: only its words reach the query language.
    """
    words = _WORD.findall(text)
    if not words:
        return []
    query = " ".join(f'"{word}"' for word in words[:-1]) + f' "{words[-1]}"*'
    rows = connection.execute(
        # Newest first walks the index backwards and stops at the limit; ranking would read every hit.
        "SELECT m.id, m.conversation_id, c.title, "
        "snippet(messages_index, 0, char(2), char(3), '…', 16) "
        "FROM messages_index JOIN messages m ON m.id = messages_index.rowid "
        "JOIN conversations c ON c.id = m.conversation_id "
        "WHERE messages_index MATCH ? AND c.trashed_s IS NULL "
        "ORDER BY messages_index.rowid DESC LIMIT ?",
        (query.strip(), limit),
    )
    return [Hit(*row) for row in rows]

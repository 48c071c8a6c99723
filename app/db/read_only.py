"""Reading chats beside a window that may have them open: nothing is migrated, marked or written."""

from pathlib import Path

import apsw

from app.db import conversations, messages
from app.db.errors import StoreUnreadable


def chat_texts(path: Path) -> list[str]:
    """What was said in each chat that is not in the trash, the last first. Raises: StoreUnreadable."""
    if not path.exists():
        return []
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            found = [messages.of_conversation(connection, c.id) for c in conversations.listing(connection)]
        finally:
            connection.close()
    except apsw.Error as error:
        raise StoreUnreadable(path, str(error)) from error
    texts = ["\n\n".join(m.content for m in messages if m.role != "tool" and m.content) for messages in found]
    return [t for t in texts if t]

"""Read and write conversations. All functions run on the store's single thread."""

import json
import re
import time
from collections.abc import Iterable, Mapping

import apsw

from app.db.records import Conversation, Folder, Hit, Preset

_COLUMNS = (
    "id, title, folder_id, pinned, model, system_prompt, sampling, draft, leaf_id, created_s, archived, tools"
)
_EDITABLE = frozenset(
    {"title", "folder_id", "pinned", "model", "system_prompt", "sampling", "draft", "leaf_id", "tools"}
)
_OF_FOLDERS = frozenset({"name", "path", "instructions", "model", "sampling", "tools"})
_AS_JSON = frozenset({"sampling", "tools"})


def create(connection: apsw.Connection, *, created_s: float | None = None, **fields: object) -> Conversation:
    """Create an empty conversation; fields as in `Conversation`. `created_s`: None for now."""
    with connection:
        connection.execute(
            "INSERT INTO conversations(created_s, touched) "
            "VALUES (?, (SELECT coalesce(max(touched), 0) + 1 FROM conversations))",
            (created_s or time.time(),),
        )
        conversation_id = connection.last_insert_rowid()
        update(connection, conversation_id, **fields)
    return get(connection, conversation_id)


def get(connection: apsw.Connection, conversation_id: int) -> Conversation:
    """Load one conversation. Raises: KeyError."""
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM conversations WHERE id = ?",
        (conversation_id,),
    ).fetchone()
    if row is None:
        raise KeyError(conversation_id)
    return _conversation(row)


def listing(connection: apsw.Connection) -> list[Conversation]:
    """All conversations outside the trash, pinned ones first, then the latest used first."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM conversations WHERE trashed_s IS NULL ORDER BY pinned DESC, touched DESC"
    )
    return [_conversation(row) for row in rows]


def update(connection: apsw.Connection, conversation_id: int, /, **fields: object) -> None:
    """Update fields of a conversation; names as in `Conversation`."""
    unknown = fields.keys() - _EDITABLE
    if unknown:
        raise TypeError(f"not a field of a conversation: {sorted(unknown)}")
    if not fields:
        return
    _set(connection, "conversations", conversation_id, fields)


def _set(connection: apsw.Connection, table: str, number: int, fields: dict[str, object]) -> None:
    names = ", ".join(f"{name} = ?" for name in fields)
    values = [json.dumps(value) if name in _AS_JSON else value for name, value in fields.items()]
    connection.execute(
        f"UPDATE {table} SET {names} WHERE id = ?",
        (*values, number),
    )


def touch(connection: apsw.Connection, conversation_id: int) -> None:
    """Move a conversation to the top of the list."""
    connection.execute(
        "UPDATE conversations SET touched = (SELECT coalesce(max(touched), 0) + 1 FROM conversations) WHERE id = ?",
        (conversation_id,),
    )


def trash(connection: apsw.Connection, conversation_ids: Iterable[int]) -> None:
    """Move conversations to the trash; `untrash` restores them."""
    with connection:
        connection.executemany(
            "UPDATE conversations SET trashed_s = ? WHERE id = ?",
            [(time.time(), conversation_id) for conversation_id in conversation_ids],
        )


def untrash(connection: apsw.Connection, conversation_ids: Iterable[int]) -> None:
    """Restore conversations from the trash."""
    with connection:
        connection.executemany(
            "UPDATE conversations SET trashed_s = NULL WHERE id = ?",
            [(conversation_id,) for conversation_id in conversation_ids],
        )


def archive(connection: apsw.Connection, conversation_ids: Iterable[int], *, away: bool) -> None:
    """Archive conversations, or undo that; search finds them in both cases."""
    with connection:
        connection.executemany(
            "UPDATE conversations SET archived = ? WHERE id = ?",
            [(int(away), conversation_id) for conversation_id in conversation_ids],
        )


def remove(connection: apsw.Connection, conversation_id: int) -> None:
    """Delete a conversation permanently."""
    connection.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))


def empty_trash(connection: apsw.Connection) -> int:
    """Delete all conversations in the trash permanently; return their number."""
    with connection:
        connection.execute("DELETE FROM conversations WHERE trashed_s IS NOT NULL")
        return connection.changes()
    raise AssertionError("unreachable: a connection's context never swallows an error")


def folders(connection: apsw.Connection) -> list[Folder]:
    """All folders, sorted by name."""
    rows = connection.execute(
        "SELECT id, name, path, instructions, model, sampling, tools FROM folders ORDER BY name COLLATE NOCASE, id"
    )
    return [
        Folder(number, name, path, instructions, model, json.loads(sampling), tuple(json.loads(tools)))
        for number, name, path, instructions, model, sampling, tools in rows
    ]


def update_folder(connection: apsw.Connection, folder_id: int, /, **fields: object) -> None:
    """Update fields of a folder; names as in `Folder`."""
    unknown = fields.keys() - _OF_FOLDERS
    if unknown:
        raise TypeError(f"not a field of a folder: {sorted(unknown)}")
    if fields:
        _set(connection, "folders", folder_id, fields)


def create_folder(connection: apsw.Connection, name: str) -> Folder:
    """Create a folder."""
    connection.execute("INSERT INTO folders(name) VALUES (?)", (name,))
    return Folder(connection.last_insert_rowid(), name)


def rename_folder(connection: apsw.Connection, folder_id: int, name: str) -> None:
    """Rename a folder."""
    connection.execute("UPDATE folders SET name = ? WHERE id = ?", (name, folder_id))


def remove_folder(connection: apsw.Connection, folder_id: int) -> None:
    """Remove a folder; its conversations stay, outside any folder."""
    connection.execute("DELETE FROM folders WHERE id = ?", (folder_id,))


def presets(connection: apsw.Connection) -> list[Preset]:
    """All presets, sorted by name."""
    rows = connection.execute("SELECT id, name, system_prompt, sampling FROM presets ORDER BY name")
    return [Preset(row[0], row[1], row[2], json.loads(row[3])) for row in rows]


def save_preset(connection: apsw.Connection, name: str, system_prompt: str, sampling: Mapping[str, object]) -> None:
    """Create or replace the preset with this name."""
    connection.execute(
        "INSERT INTO presets(name, system_prompt, sampling) VALUES (?, ?, ?) "
        "ON CONFLICT(name) DO UPDATE SET system_prompt = excluded.system_prompt, "
        "sampling = excluded.sampling",
        (name, system_prompt, json.dumps(dict(sampling))),
    )


def remove_preset(connection: apsw.Connection, preset_id: int) -> None:
    """Remove a preset."""
    connection.execute("DELETE FROM presets WHERE id = ?", (preset_id,))


def _conversation(row: tuple[object, ...]) -> Conversation:
    number, title, folder_id, pinned, model, system_prompt, sampling, draft, leaf_id, created_s, archived, tools = (
        row
    )
    return Conversation(
        id=int(str(number)),
        title=str(title),
        folder_id=None if folder_id is None else int(str(folder_id)),
        pinned=bool(pinned),
        model=str(model),
        system_prompt=str(system_prompt),
        sampling=json.loads(str(sampling)),
        draft=str(draft),
        leaf_id=None if leaf_id is None else int(str(leaf_id)),
        created_s=float(str(created_s)),
        archived=bool(archived),
        tools=tuple(json.loads(str(tools))),
    )


_WORD = re.compile(r"\w+")


def search(connection: apsw.Connection, text: str, limit: int = 50) -> list[Hit]:
    """Messages that contain all words of `text` (the last one as a prefix), newest first.

    Any input is safe: only its words are used in the query.
    """
    words = _WORD.findall(text)
    if not words:
        return []
    query = " ".join(f'"{word}"' for word in words[:-1]) + f' "{words[-1]}"*'
    rows = connection.execute(
        # Newest first reads the index backwards and stops at the limit; ranking would read every hit.
        "SELECT m.id, m.conversation_id, c.title, "
        "snippet(messages_index, 0, char(2), char(3), '…', 16) "
        "FROM messages_index JOIN messages m ON m.id = messages_index.rowid "
        "JOIN conversations c ON c.id = m.conversation_id "
        "WHERE messages_index MATCH ? AND c.trashed_s IS NULL "
        "ORDER BY messages_index.rowid DESC LIMIT ?",
        (query.strip(), limit),
    )
    return [Hit(*row) for row in rows]

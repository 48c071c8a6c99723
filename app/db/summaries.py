"""Read and write summaries of messages. All functions run on the store's single thread and change no message."""

import time
from collections.abc import Iterable

import apsw

from app.db.records import Summary

_COLUMNS = "id, conversation_id, first_id, last_id, summary, model, opened, edited, inside_id, created_s"


def of_conversation(connection: apsw.Connection, conversation_id: int) -> list[Summary]:
    """All summaries of a conversation, including those inside others."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM folds WHERE conversation_id = ? ORDER BY id",
        (conversation_id,),
    )
    return [
        Summary(number, chat, first, last, summary, model, bool(opened), bool(edited), outer, created)
        for number, chat, first, last, summary, model, opened, edited, outer, created in rows
    ]


def add(
    connection: apsw.Connection,
    conversation_id: int,
    first_id: int,
    last_id: int,
    summary: str,
    *,
    model: str = "",
    takes_in: Iterable[int] = (),
) -> Summary:
    """Store a summary; the summaries that it includes become effective again when it is removed."""
    with connection:
        connection.execute(
            "INSERT INTO folds(conversation_id, first_id, last_id, summary, model, created_s)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (conversation_id, first_id, last_id, summary, model, time.time()),
        )
        number = connection.last_insert_rowid()
        connection.executemany("UPDATE folds SET inside_id = ? WHERE id = ?", [(number, old) for old in takes_in])
    return next(fold for fold in of_conversation(connection, conversation_id) if fold.id == number)


def rewrite(connection: apsw.Connection, fold_id: int, summary: str) -> None:
    """Replace a summary's text with the user's text."""
    connection.execute("UPDATE folds SET summary = ?, edited = 1 WHERE id = ?", (summary, fold_id))


def set_opened(connection: apsw.Connection, fold_id: int, opened: bool) -> None:
    """Choose whether the original messages are sent instead of the summary."""
    connection.execute("UPDATE folds SET opened = ? WHERE id = ?", (int(opened), fold_id))


def remove(connection: apsw.Connection, fold_id: int) -> None:
    """Remove a summary; its messages, or the summaries inside it, become effective again."""
    with connection:
        connection.execute("DELETE FROM folds WHERE id = ?", (fold_id,))

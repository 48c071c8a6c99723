"""Read and write messages. All functions run on the store's single thread."""

import time
from collections.abc import Iterable

import apsw

from app.answer_facts import NO_FACTS, AnswerFacts, decoded, encoded
from app.db import conversations, summaries
from app.db.records import Attachment, Conversation, Message, Role, Status, Summary

_COLUMNS = "id, conversation_id, parent_id, role, content, reasoning, status, model, facts, created_s"


def add(
    connection: apsw.Connection,
    conversation_id: int,
    parent_id: int | None,
    role: Role,
    content: str,
    *,
    status: Status = "complete",
    model: str = "",
    reasoning: str = "",
    facts: AnswerFacts = NO_FACTS,
    attachments: Iterable[Attachment] = (),
    created_s: float | None = None,
) -> Message:
    """Write a message durably and make it the end of the visible branch. `created_s`: None for now.

    A message with an explicit date does not move its conversation to the top of the list.
    """
    is_new, created_s = created_s is None, created_s or time.time()
    stored: list[Attachment] = []
    with connection:
        connection.execute(
            "INSERT INTO messages(conversation_id, parent_id, role, content, reasoning, status, model, facts,"
            " created_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                conversation_id,
                parent_id,
                role,
                content,
                reasoning,
                status,
                model,
                encoded(facts),
                created_s,
            ),
        )
        message_id = connection.last_insert_rowid()
        for item in attachments:
            connection.execute(
                "INSERT INTO attachments(message_id, name, mime, text, data) VALUES (?, ?, ?, ?, ?)",
                (message_id, item.name, item.mime, item.text, item.data),
            )
            stored.append(Attachment(item.name, item.mime, item.text, item.data, connection.last_insert_rowid()))
        conversations.update(connection, conversation_id, leaf_id=message_id)
        if is_new:
            conversations.touch(connection, conversation_id)
    return Message(
        message_id,
        conversation_id,
        parent_id,
        role,
        content,
        reasoning,
        status,
        model,
        facts,
        tuple(stored),
        created_s,
    )


def write_text(
    connection: apsw.Connection, message_id: int, *, content: str, reasoning: str, status: Status
) -> None:
    """Update the text of a message during generation."""
    connection.execute(
        "UPDATE messages SET content = ?, reasoning = ?, status = ? WHERE id = ?",
        (content, reasoning, status, message_id),
    )


def finish(
    connection: apsw.Connection,
    message_id: int,
    *,
    content: str,
    reasoning: str,
    status: Status,
    facts: AnswerFacts,
) -> None:
    """Write the final state of a generated message."""
    connection.execute(
        "UPDATE messages SET content = ?, reasoning = ?, status = ?, facts = ? WHERE id = ?",
        (content, reasoning, status, encoded(facts), message_id),
    )


def remove(connection: apsw.Connection, conversation_id: int, message_id: int) -> None:
    """Delete a message and all that follow it; the visible branch then ends before it."""
    with connection:
        parent = connection.execute("SELECT parent_id FROM messages WHERE id = ?", (message_id,)).fetchone()
        connection.execute(
            "WITH RECURSIVE below(id) AS (SELECT ? UNION ALL SELECT m.id FROM messages m JOIN below b "
            "ON m.parent_id = b.id) DELETE FROM messages WHERE id IN (SELECT id FROM below)",
            (message_id,),
        )
        leaf = parent[0] if parent else None
        connection.execute("UPDATE conversations SET leaf_id = ? WHERE id = ?", (leaf, conversation_id))


def of_conversation(connection: apsw.Connection, conversation_id: int) -> list[Message]:
    """All messages of a conversation in all branches, oldest first."""
    attached: dict[int, list[Attachment]] = {}
    for message_id, *columns in connection.execute(
        "SELECT a.message_id, a.name, a.mime, a.text, a.data, a.id FROM attachments a "
        "JOIN messages m ON m.id = a.message_id WHERE m.conversation_id = ? ORDER BY a.id",
        (conversation_id,),
    ):
        attached.setdefault(message_id, []).append(Attachment(*columns))
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM messages WHERE conversation_id = ? ORDER BY id",
        (conversation_id,),
    )
    return [
        Message(*(message_id, *plain, decoded(facts), tuple(attached.get(message_id, ())), created_s))
        for message_id, *plain, facts, created_s in rows
    ]


def whole(connection: apsw.Connection, conversation_id: int) -> tuple[Conversation, list[Message], list[Summary]]:
    """A conversation with all its messages and summaries. Raises: KeyError."""
    return (
        conversations.get(connection, conversation_id),
        of_conversation(connection, conversation_id),
        summaries.of_conversation(connection, conversation_id),
    )

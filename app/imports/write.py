"""Add imported chats to the database: all of them, or none."""

from collections.abc import Callable, Sequence

import apsw

from app.answer_facts import AnswerFacts
from app.db import conversations, messages
from app.db.records import Attachment
from app.imports.types import Chat

_LONGEST_TITLE = 200
Progress = Callable[[int, int], object]  # chats written so far, chats in all


def unseen(done: int, total: int) -> None:
    """Ignore progress reports."""
    del done, total


def add_chats(connection: apsw.Connection, chats: Sequence[Chat], progress: Progress = unseen) -> list[int]:
    """Write the chats with their branches; return their ids. Lists omitted contents in their messages."""
    ids = []
    with connection:
        for number, chat in enumerate(chats):
            progress(number, len(chats))
            ids.append(_add(connection, chat))
    return ids


def _add(connection: apsw.Connection, chat: Chat) -> int:
    conversation = conversations.create(
        connection,
        title=" ".join(chat.title.split())[:_LONGEST_TITLE],
        system_prompt=chat.system_prompt,
        created_s=chat.created_s,
    )
    ids: dict[str, int] = {}
    for message in chat.messages:
        written = messages.add(
            connection,
            conversation.id,
            ids.get(message.parent) if message.parent is not None else None,
            message.role,
            message.text,
            reasoning=message.reasoning,
            model=message.model or chat.model if message.role == "assistant" else "",
            facts=AnswerFacts(left_out=message.left_out),
            attachments=[Attachment(name, "text/plain", text) for name, text in message.documents]
            + [Attachment(f"{name} (not in the export)", "") for name in message.left_out],
            created_s=message.created_s or chat.created_s,
        )
        ids[message.key] = written.id
    if chat.leaf in ids:
        conversations.update(connection, conversation.id, leaf_id=ids[chat.leaf])
    return conversation.id

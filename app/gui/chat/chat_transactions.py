"""The steps of a conversation as single transactions. When one returns, its data is saved."""

from collections.abc import Sequence
from dataclasses import dataclass

import apsw

from app.db import conversations, messages
from app.db.records import Attachment, Conversation, Message

_TITLE_CHARACTERS = 60


@dataclass(frozen=True)
class Turn:
    """The stored objects: the conversation, the user message (None for a retry) and the empty response."""

    conversation: Conversation
    question: Message | None
    answer: Message


@dataclass(frozen=True)
class Draft:
    """A user message to write. `parent_id` is its parent message. A conversation with id 0 is created."""

    conversation: Conversation
    parent_id: int | None
    text: str
    attachments: Sequence[Attachment] = ()


def ask(connection: apsw.Connection, draft: Draft) -> Turn:
    """Write the user message and an empty response."""
    conversation = draft.conversation
    with connection:
        if not conversation.id:
            conversation = conversations.create(
                connection,
                title=title_of(draft.text, draft.attachments),
                model=conversation.model,
                system_prompt=conversation.system_prompt,
                sampling=conversation.sampling,
                folder_id=conversation.folder_id,
                tools=conversation.tools,
            )
        else:
            conversations.update(connection, conversation.id, draft="", model=conversation.model)
        question = messages.add(
            connection, conversation.id, draft.parent_id, "user", draft.text, attachments=draft.attachments
        )
        answer = messages.add(
            connection, conversation.id, question.id, "assistant", "", status="streaming", model=conversation.model
        )
    return Turn(conversation, question, answer)


def answer_again(connection: apsw.Connection, conversation: Conversation, question_id: int) -> Turn:
    """Write another empty response to the same user message."""
    answer = messages.add(
        connection, conversation.id, question_id, "assistant", "", status="streaming", model=conversation.model
    )
    return Turn(conversation, None, answer)


def fork(connection: apsw.Connection, source: Conversation, path: Sequence[Message]) -> Conversation:
    """Create a conversation from copies of these messages. The source stays unchanged."""
    with connection:
        copy = conversations.create(
            connection,
            title=source.title,
            model=source.model,
            system_prompt=source.system_prompt,
            sampling=source.sampling,
            folder_id=source.folder_id,
            tools=source.tools,
        )
        parent: int | None = None
        for message in path:
            written = messages.add(
                connection,
                copy.id,
                parent,
                message.role,
                message.content,
                reasoning=message.reasoning,
                status=message.status,
                model=message.model,
                facts=message.facts,
                attachments=message.attachments,
            )
            parent = written.id
    return copy


def title_of(text: str, attachments: Sequence[Attachment] = ()) -> str:
    """A title from the first line of the message. Uses no model, so the KV cache is not disturbed."""
    line = next((line.strip(" #*>-`") for line in text.splitlines() if line.strip(" #*>-`")), "")
    if not line and attachments:
        line = attachments[0].name
    if len(line) <= _TITLE_CHARACTERS:
        return line
    cut = line[:_TITLE_CHARACTERS].rsplit(" ", 1)[0]
    return f"{cut}…"


def rounds(path: Sequence[Message]) -> int:
    """Number of tool-call rounds since the last user message."""
    count = 0
    for message in reversed(path):
        if message.role == "user":
            break
        count += message.role == "assistant" and bool(message.facts.tool_calls)
    return count

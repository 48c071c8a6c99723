"""Conversations as files: JSON that comes back whole, Markdown to read and share. No Qt here."""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from app.db import conversations, messages
from app.db.records import Attachment, Conversation, Message
from app.gui.chat.tree import MessageTree

FORMAT = "tessera-chats"
VERSION = 1
_MOST_MESSAGES = 1_000_000
_ROLES = frozenset({"user", "assistant", "tool"})
_STATUSES = frozenset({"complete", "stopped", "interrupted", "error"})


class ImportFailed(Exception):
    """The file is not an export of chats; `reason` says where it departs from one."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"This file cannot be imported: {reason}.")
        self.reason = reason


def to_json(items: Sequence[tuple[Conversation, Sequence[Message]]]) -> str:
    """Conversations with all their branches."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "conversations": [
            {
                "title": chat.title,
                "model": chat.model,
                "system_prompt": chat.system_prompt,
                "sampling": chat.sampling,
                "leaf": chat.leaf_id,
                "messages": [_message(message) for message in rows],
            }
            for chat, rows in items
        ],
    }
    return json.dumps(document, ensure_ascii=False, indent=1)


def to_markdown(chat: Conversation, rows: Sequence[Message]) -> str:
    """The branch that is shown, as a document."""
    parts = [f"# {chat.title}"]
    if chat.system_prompt:
        parts.append(f"> {chat.system_prompt}".replace("\n", "\n> "))
    for message in MessageTree(rows, chat.leaf_id).path():
        parts.append(f"## {message.model if message.role == 'assistant' else 'You'}")
        parts.extend(f"*{item.name}*" for item in message.attachments)
        parts.append(message.content)
    return "\n\n".join(parts) + "\n"


def import_json(connection: apsw.Connection, text: str) -> int:
    """Add the conversations of an export; all of them, or none. Returns how many.

    Raises: ImportFailed.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ImportFailed("it is not JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ImportFailed("it is not an export of Tessera's chats")
    if document.get("version") != VERSION:
        raise ImportFailed(f"its version is {document.get('version')!r}, this Tessera reads {VERSION}")
    chats = document.get("conversations")
    if not isinstance(chats, list):
        raise ImportFailed("it holds no conversations")
    with connection:
        for chat in chats:
            _import_chat(connection, chat)
    return len(chats)


def _message(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "parent": message.parent_id,
        "role": message.role,
        "content": message.content,
        "reasoning": message.reasoning,
        "status": message.status,
        "model": message.model,
        "facts": message.facts,
        "attachments": [
            {
                "name": item.name,
                "mime": item.mime,
                "text": item.text,
                "data": base64.b64encode(item.data).decode() if item.data else None,
            }
            for item in message.attachments
        ],
    }


def _import_chat(connection: apsw.Connection, chat: Any) -> None:
    if not isinstance(chat, dict) or not isinstance(chat.get("messages"), list):
        raise ImportFailed("a conversation has no list of messages")
    sampling = chat.get("sampling")
    made = conversations.create(
        connection,
        title=_text(chat, "title"),
        model=_text(chat, "model"),
        system_prompt=_text(chat, "system_prompt"),
        sampling=sampling if isinstance(sampling, dict) else {},
    )
    ids: dict[Any, int] = {}
    for row in chat["messages"][:_MOST_MESSAGES]:
        if not isinstance(row, dict) or row.get("role") not in _ROLES:
            raise ImportFailed("a message has no known role")
        parent = row.get("parent")
        if parent is not None and parent not in ids:
            raise ImportFailed("a message follows one that is not before it")
        status = row.get("status")
        facts = row.get("facts")
        written = messages.add(
            connection,
            made.id,
            None if parent is None else ids[parent],
            row["role"],
            _text(row, "content"),
            reasoning=_text(row, "reasoning"),
            status=status if status in _STATUSES else "complete",
            model=_text(row, "model"),
            facts=facts if isinstance(facts, dict) else {},
            attachments=[_attachment(item) for item in row.get("attachments") or ()],
        )
        ids[row.get("id")] = written.id
    if chat.get("leaf") in ids:
        conversations.update(connection, made.id, leaf_id=ids[chat["leaf"]])


def _attachment(item: Any) -> Attachment:
    if not isinstance(item, dict):
        raise ImportFailed("an attachment is not an object")
    data = item.get("data")
    try:
        raw = base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except ValueError:
        raise ImportFailed("an attachment is not base64") from None
    return Attachment(_text(item, "name"), _text(item, "mime"), _text(item, "text"), raw)


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name, "")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ImportFailed(f"{name} is not text")
    return value

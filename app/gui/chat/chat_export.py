"""Conversations as files: JSON for lossless import, Markdown for reading and sharing. No Qt here."""

import base64
import html
import json
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from app.answer_facts import facts_of
from app.db import conversations, messages
from app.db.records import Attachment, Conversation, Message
from app.gui.chat.tree import MessageTree
from app.imports.read import read_chats, read_document
from app.imports.types import Chat, ImportFailed, date_of
from app.imports.write import Progress, add_chats, unseen

FORMAT = "tessera-chats"
VERSION = 1
_NOT_IN_NAMES = re.compile(r'[\x00-\x1f<>:"/\\|?*]+')
_LONGEST_NAME = 60
_MOST_MESSAGES = 1_000_000
_ROLES = frozenset({"user", "assistant", "tool"})
_STATUSES = frozenset({"complete", "stopped", "interrupted", "error"})


def to_json(items: Sequence[tuple[Conversation, Sequence[Message]]]) -> str:
    """Serialize conversations with all their branches as JSON."""
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
                "created_s": chat.created_s,
                "messages": [_message(message) for message in rows],
            }
            for chat, rows in items
        ],
    }
    return json.dumps(document, ensure_ascii=False, indent=1)


def file_name(title: str) -> str:
    """Turn a title into a file name that is valid on every system."""
    return _NOT_IN_NAMES.sub(" ", title)[:_LONGEST_NAME].strip(" .…")


def every_chat(
    connection: apsw.Connection, only: Collection[int] | None = None
) -> list[tuple[Conversation, list[Message]]]:
    """All chats that are not in the trash, or those of these ids, with their messages."""
    chats = [chat for chat in conversations.listing(connection) if only is None or chat.id in only]
    return [(chat, messages.of_conversation(connection, chat.id)) for chat in chats]


def write_archive(path: Path, items: Sequence[tuple[Conversation, Sequence[Message]]]) -> None:
    """Write a ZIP archive: `conversations.json` for import, and one Markdown file per chat. Raises: OSError."""
    partial = path.with_name(path.name + ".partial")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("conversations.json", to_json(items))
            for number, (chat, rows) in enumerate(items, 1):
                name = f"{number:04} {file_name(chat.title) or 'chat'}.md"
                archive.writestr(f"markdown/{name}", to_markdown(chat, rows))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def to_markdown(chat: Conversation, rows: Sequence[Message]) -> str:
    """The visible branch as a Markdown document."""
    parts = [f"# {chat.title}"]
    if chat.system_prompt:
        parts.append(f"> {chat.system_prompt}".replace("\n", "\n> "))
    for message in MessageTree(rows, chat.leaf_id).path():
        parts.append(f"## {message.model if message.role == 'assistant' else 'You'}")
        parts.extend(f"*{item.name}*" for item in message.attachments)
        parts.append(message.content)
    return "\n\n".join(parts) + "\n"


_PAGE = """<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; line-height: 1.5; max-width: 48em; margin: 2em auto; padding: 0 1em; }}
pre {{ background: #f4f4f4; padding: 0.8em; white-space: pre-wrap; }}
code {{ font-family: monospace; }}
table {{ border-collapse: collapse; }}
th, td {{ border: 1px solid #ccc; padding: 0.3em 0.6em; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def to_html(chat: Conversation, rows: Sequence[Message]) -> str:
    """The visible branch as a web page. It loads nothing: raw HTML stays text, and images become their address."""
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])
    markdown.add_render_rule("image", _image_as_text)
    return _PAGE.format(title=html.escape(chat.title), body=markdown.render(to_markdown(chat, rows)))


def _image_as_text(_renderer: Any, tokens: Any, place: int, _options: Any, _env: Any) -> str:
    token = tokens[place]
    return html.escape(f"{token.content} ({token.attrs.get('src', '')})")


def read_export(path: Path) -> Any:
    """Read a Tessera export as its JSON document, or another program's export as a list of chats.

    Raises: ImportFailed, OSError.
    """
    document = None if path.suffix == ".jsonl" else read_document(path)
    ours = isinstance(document, dict) and document.get("format") == FORMAT
    return document if ours else read_chats(path, document)


def import_chats(connection: apsw.Connection, content: Any, progress: Progress = unseen) -> list[int]:
    """Add the chats that `read_export` returned, all or none. Returns their ids. Raises: ImportFailed."""
    if isinstance(content, list) and all(isinstance(chat, Chat) for chat in content):
        return add_chats(connection, content, progress)
    return import_document(connection, content, progress)


def import_document(connection: apsw.Connection, document: Any, progress: Progress = unseen) -> list[int]:
    """Add the conversations of a Tessera export, all or none. Returns their ids.

    Raises: ImportFailed.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ImportFailed("it is not an export of Tessera's chats")
    if document.get("version") != VERSION:
        raise ImportFailed(f"its version is {document.get('version')!r}, this Tessera reads {VERSION}")
    chats = document.get("conversations")
    if not isinstance(chats, list):
        raise ImportFailed("it contains no conversations")
    ids = []
    with connection:
        for number, chat in enumerate(chats):
            progress(number, len(chats))
            ids.append(_import_chat(connection, chat))
    return ids


def _message(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "parent": message.parent_id,
        "role": message.role,
        "content": message.content,
        "reasoning": message.reasoning,
        "status": message.status,
        "model": message.model,
        "created_s": message.created_s,
        # Memories belong to the user and are not part of an exported chat.
        "facts": msgspec.to_builtins(msgspec.structs.replace(message.facts, memories=())),
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


def _import_chat(connection: apsw.Connection, chat: Any) -> int:
    if not isinstance(chat, dict) or not isinstance(chat.get("messages"), list):
        raise ImportFailed("a conversation has no list of messages")
    sampling = chat.get("sampling")
    created = conversations.create(
        connection,
        title=_text(chat, "title"),
        model=_text(chat, "model"),
        system_prompt=_text(chat, "system_prompt"),
        sampling=sampling if isinstance(sampling, dict) else {},
        created_s=date_of(chat.get("created_s")),
    )
    ids: dict[Any, int] = {}
    for row in chat["messages"][:_MOST_MESSAGES]:
        if not isinstance(row, dict) or row.get("role") not in _ROLES:
            raise ImportFailed("a message has no known role")
        parent = row.get("parent")
        if parent is not None and parent not in ids:
            raise ImportFailed("a message follows one that is not before it")
        status = row.get("status")
        written = messages.add(
            connection,
            created.id,
            None if parent is None else ids[parent],
            row["role"],
            _text(row, "content"),
            reasoning=_text(row, "reasoning"),
            status=status if status in _STATUSES else "complete",
            model=_text(row, "model"),
            facts=facts_of(row.get("facts")),
            attachments=[_attachment(item) for item in row.get("attachments") or ()],
            created_s=date_of(row.get("created_s"), chat.get("created_s")),
        )
        ids[row.get("id")] = written.id
    if chat.get("leaf") in ids:
        conversations.update(connection, created.id, leaf_id=ids[chat["leaf"]])
    return created.id


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

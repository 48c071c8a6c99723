"""Read an export from a file: JSON, a zip that contains conversations.json, or a thread of Jan."""

import errno
import json
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

from app.imports.types import Branches, Chat, ImportFailed, Message, date_of, rows_of, table_of, text_of
from engine.core.errors import InputFault
from engine.core.json_bounds import JsonSizeCounter

# Larger than any export; a file that decompresses to more is not an export.
MAX_BYTES: Final = 1 << 30
# Values of a JSON text, which take up to 2 GB of memory as objects. The largest exports have one million objects.
MAX_OBJECTS: Final = 3_000_000
MAX_VALUES: Final = 15_000_000
_INSIDE: Final = "conversations.json"
# ChatGPT splits large exports: conversations-000.json and so on.
_INSIDE_NAMES: Final = re.compile(r"conversations(?:-\d+)?\.json")


def read_document(path: Path) -> Any:
    """Parse the JSON of a file; several lists in an archive become one. Raises: ImportFailed, OSError."""
    texts = _texts(path)
    _require_size(*texts)
    documents = [_parsed(text) for text in texts]
    return documents[0] if len(documents) == 1 else [row for rows in documents for row in rows_of(rows)]


def read_chats(path: Path, document: Any = None) -> list[Chat]:
    """Read the chats of another program's export. Raises: ImportFailed, OSError."""
    if path.suffix == ".jsonl":
        beside = path.with_name("thread.json")
        about = read_document(beside) if beside.is_file() else {}
        lines = _read(path)
        _require_size(lines)
        return [jan(lines.decode("utf-8-sig", "replace"), about)]
    return chats_of(read_document(path) if document is None else document)


def _texts(path: Path) -> list[bytes]:
    """The file, or the files with conversations in the archive."""
    if not zipfile.is_zipfile(path):
        return [_read(path)]
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if _INSIDE_NAMES.fullmatch(name.rpartition("/")[2]))
            if not names:
                raise ImportFailed(f"there is no {_INSIDE} in it")
            if sum(archive.getinfo(name).file_size for name in names) > MAX_BYTES:
                raise ImportFailed(f"it inflates to more than {MAX_BYTES >> 30} GiB")
            texts, left = [], MAX_BYTES  # the sizes in the directory may be false
            for name in names:
                with archive.open(name) as file:
                    texts.append(_bounded(file.read(left + 1), left))
                left -= len(texts[-1])
            return texts
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise ImportFailed(f"the archive is damaged or encrypted ({error})") from error
    except OSError as error:
        # EINVAL: an offset in a damaged zip directory. No errno: a stream that cannot be decompressed.
        if error.errno not in {None, errno.EINVAL}:
            raise
        raise ImportFailed(f"the archive is damaged or encrypted ({error})") from error


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return _bounded(file.read(MAX_BYTES + 1))


def _bounded(raw: bytes, most: int = MAX_BYTES) -> bytes:
    if len(raw) > most:
        raise ImportFailed(f"it is larger than {MAX_BYTES >> 30} GiB")
    return raw


def _require_size(*texts: bytes) -> None:
    """Raises: ImportFailed: the texts have too many values."""
    counter = JsonSizeCounter(MAX_OBJECTS, MAX_VALUES)
    try:
        for text in texts:
            counter.count_all(text)
    except InputFault:
        raise ImportFailed(f"it has more than {MAX_OBJECTS:,} objects or {MAX_VALUES:,} values") from None


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        raise ImportFailed("it is not JSON") from None


# Parsers for exports of ChatGPT, Claude, LM Studio, Open WebUI and Jan, by their documented formats.

_ROLES = {"user": "user", "human": "user", "assistant": "assistant"}


def chats_of(document: Any) -> list[Chat]:
    """Parse the chats of a JSON document of these programs. Raises: ImportFailed: unknown format."""
    rows = rows_of(document if isinstance(document, list) else [document])
    if rows and all("mapping" in row for row in rows):
        return [_chatgpt(row) for row in rows]
    if rows and all("chat_messages" in row for row in rows):
        return [_claude(row) for row in rows]
    if rows and all(isinstance(row.get("chat"), dict) for row in rows):
        return [_open_webui(row) for row in rows]
    if rows and all(_is_lm_studio(row) for row in rows):
        return [_lm_studio(row) for row in rows]
    raise ImportFailed("it is not an export of Tessera, ChatGPT, Claude, LM Studio, Open WebUI or Jan")


def jan(lines: str, thread: Any) -> Chat:
    """Parse a thread of Jan: the lines of messages.jsonl and its thread.json. Raises: ImportFailed."""
    branches = Branches()
    parent: str | None = None
    for number, line in enumerate(lines.split("\n")):  # `splitlines` also splits at signs that JSON texts may hold
        if not line.strip():
            continue
        try:
            row = table_of(json.loads(line))
        except (ValueError, RecursionError):
            raise ImportFailed(f"line {number + 1} of messages.jsonl is not JSON") from None
        parts = rows_of(row.get("content"))
        text = "\n\n".join(text_of(table_of(part.get("text")).get("value")) for part in parts if "text" in part)
        key = text_of(row.get("id")) or str(number)
        role = _ROLES.get(text_of(row.get("role")))
        omitted = tuple(text_of(part.get("type")) for part in parts if "text" not in part)
        when = date_of(row.get("created_at"))
        branches.add(key, parent, _message(key, role, text, left_out=omitted, created_s=when))
        parent = key
    about = table_of(thread)
    assistant = next(iter(rows_of(about.get("assistants"))), {})
    model = text_of(table_of(assistant.get("model")).get("id"))
    when = date_of(about.get("updated"), about.get("created"))
    system = text_of(assistant.get("instructions"))
    return _chat(text_of(about.get("title")), branches, parent, model, system, when=when)


def _chatgpt(row: dict[str, Any]) -> Chat:
    branches, model, system = Branches(), "", ""
    for key, node in table_of(row["mapping"]).items():
        message = table_of(table_of(node).get("message"))
        content = table_of(message.get("content"))
        role = text_of(table_of(message.get("author")).get("role"))
        parts = content.get("parts")
        texts = [part for part in parts if isinstance(part, str)] if isinstance(parts, list) else []
        others = [table_of(part) for part in parts if not isinstance(part, str)] if isinstance(parts, list) else []
        text = "\n\n".join(filter(None, texts)) or text_of(content.get("text"))
        facts = table_of(message.get("metadata"))
        model_slug = text_of(facts.get("model_slug"))
        if role == "system":
            system = system or text
        hidden = facts.get("is_visually_hidden_from_conversation") or content.get("content_type") == "thoughts"
        omitted = tuple(text_of(part.get("content_type")) or "attachment" for part in others)
        parent = table_of(node).get("parent")
        when = date_of(message.get("create_time"))
        entry = None
        if not hidden:
            entry = _message(key, _ROLES.get(role), text, model=model_slug, left_out=omitted, created_s=when)
        branches.add(key, parent if isinstance(parent, str) else None, entry)
        model = model_slug or model
    leaf = row.get("current_node")
    when = date_of(row.get("update_time"), row.get("create_time"))
    shown = leaf if isinstance(leaf, str) else None
    return _chat(text_of(row.get("title")), branches, shown, model, system, when=when)


def _claude(row: dict[str, Any]) -> Chat:
    branches, before = Branches(), None
    for number, message in enumerate(rows_of(row["chat_messages"])):
        blocks = rows_of(message.get("content"))
        text = "\n\n".join(text_of(b.get("text")) for b in blocks if b.get("type") == "text") or text_of(
            message.get("text")
        )
        reasoning = "\n\n".join(text_of(b.get("thinking")) for b in blocks if b.get("type") == "thinking")
        documents = tuple(
            (text_of(item.get("file_name")) or "attachment", text_of(item.get("extracted_content")))
            for item in rows_of(message.get("attachments"))
        )
        others = tuple(text_of(item.get("file_name")) or "file" for item in rows_of(message.get("files")))
        key = text_of(message.get("uuid")) or str(number)
        above = message.get("parent_message_uuid")
        parent = above if isinstance(above, str) and above in branches.rows else before
        role = _ROLES.get(text_of(message.get("sender")))
        when = date_of(message.get("created_at"))
        entry = _message(key, role, text, reasoning=reasoning, documents=documents, left_out=others, created_s=when)
        branches.add(key, parent, entry)
        before = key
    leaf = text_of(row.get("current_leaf_message_uuid"))
    when = date_of(row.get("updated_at"), row.get("created_at"))
    return _chat(text_of(row.get("name")), branches, leaf or before, text_of(row.get("model")), when=when)


def _open_webui(row: dict[str, Any]) -> Chat:
    chat = table_of(row["chat"])
    history = table_of(chat.get("history"))
    nodes = table_of(history.get("messages")) or {text_of(m.get("id")): m for m in rows_of(chat.get("messages"))}
    branches = Branches()
    last: str | None = None
    for key, node in nodes.items():
        message = table_of(node)
        content = message.get("content")
        text = (
            content if isinstance(content, str) else "\n\n".join(text_of(p.get("text")) for p in rows_of(content))
        )
        parent = message.get("parentId")
        others = tuple(text_of(item.get("name")) or "file" for item in rows_of(message.get("files")))
        role = _ROLES.get(text_of(message.get("role")))
        when = date_of(message.get("timestamp"))
        entry = _message(key, role, text, model=text_of(message.get("model")), left_out=others, created_s=when)
        branches.add(key, parent if isinstance(parent, str) else None, entry)
        last = key
    models = chat.get("models")
    model = text_of(models[0]) if isinstance(models, list) and models else ""
    leaf = text_of(history.get("currentId")) or last
    title = text_of(row.get("title")) or text_of(chat.get("title"))
    system = text_of(table_of(chat.get("params")).get("system"))
    when = date_of(row.get("updated_at"), row.get("created_at"), chat.get("timestamp"))
    return _chat(title, branches, leaf, model, system, when=when)


def _is_lm_studio(row: dict[str, Any]) -> bool:
    messages = rows_of(row.get("messages"))
    return isinstance(row.get("messages"), list) and all("versions" in message for message in messages)


def _lm_studio(row: dict[str, Any]) -> Chat:
    """Parse a chat; each message has versions, which follow the selected version of the previous message."""
    branches, before = Branches(), None
    for place, message in enumerate(rows_of(row["messages"])):
        versions = rows_of(message.get("versions"))
        selected = message.get("currentlySelected")
        chosen = selected if isinstance(selected, int) and 0 <= selected < len(versions) else len(versions) - 1
        after = before
        for number, version in enumerate(versions):
            key = f"{place}.{number}"
            blocks = rows_of(version.get("content"))
            blocks += [b for step in rows_of(version.get("steps")) for b in rows_of(step.get("content"))]
            text = "\n\n".join(filter(None, (text_of(b.get("text")) for b in blocks if b.get("type") == "text")))
            omitted = tuple(text_of(b.get("name")) or "file" for b in blocks if b.get("type") == "file")
            sender = table_of(version.get("senderInfo"))
            model = text_of(sender.get("senderName"))
            role = _ROLES.get(text_of(version.get("role")))
            branches.add(key, before, _message(key, role, text, model=model, left_out=omitted))
            if number == chosen:
                after = key
        before = after
    model = text_of(table_of(row.get("lastUsedModel")).get("identifier"))
    when = date_of(row.get("userLastMessagedAt"), row.get("createdAt"))
    return _chat(text_of(row.get("name")), branches, before, model, text_of(row.get("systemPrompt")), when=when)


def _message(key: str, role: str | None, text: str, **more: Any) -> Message | None:
    """Build a message; None if it has no content."""
    if role not in {"user", "assistant"} or not (text or more.get("documents") or more.get("left_out")):
        return None
    return Message(key, None, "user" if role == "user" else "assistant", text, **more)


def _chat(
    title: str,
    branches: Branches,
    leaf: str | None,
    model: str = "",
    system: str = "",
    *,
    when: float | None = None,
) -> Chat:
    """Build a chat. Without a date, it gets the date of its last message."""
    rows = branches.ordered()
    when = when or max((row.created_s for row in rows if row.created_s), default=None)
    return Chat(title, rows, branches.shown(leaf), model, system, when)

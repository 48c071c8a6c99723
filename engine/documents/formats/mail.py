"""Mail: single messages and mailboxes. Attachments are listed, not read."""

import contextlib
import email
import email.policy
import mailbox
import re
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

from engine.documents.formats.html import blocks_of
from engine.documents.formats.pseudo_pages import paragraphs
from engine.documents.types import BadDocument, Block, Page

_SHOWN = ("From", "To", "Cc", "Date", "Subject")
# Python's parser of addresses takes a minute for 30,000 of them.
_LONGEST_HEADER = 4000
# Python's parser compares each line with the boundaries of all parts around it, and calls itself for each.
DEEPEST = 30
_TOO_DEEP = "its parts are nested more than 30 deep"
_BOUNDARY = re.compile(
    rb'boundary=(?:"([^"\r\n]+)"|([^";\s]+))|^--([^\r\n]+?)[ \t]*\r?$', re.IGNORECASE | re.MULTILINE
)


def eml(path: Path) -> Iterator[Page]:
    """One message as a page."""
    yield _page(1, _parsed(path.read_bytes()))


def mbox(path: Path, first: int = 1) -> Iterator[Page]:
    """One page per message, in the order of the file."""
    box = mailbox.mbox(path, create=False)
    try:
        for number, key in enumerate(box.keys(), 1):
            if number < first:
                continue
            try:
                yield _page(number, _parsed(box.get_bytes(key)))
            except MemoryError:
                raise
            except Exception as error:
                why = str(error) if isinstance(error, BadDocument) else type(error).__name__
                yield Page(number, label=f"message {number}", problem=f"the message is damaged ({why})")
    finally:
        box.close()


def _parsed(raw: bytes) -> EmailMessage:
    """Raises: BadDocument: its parts are nested too deeply."""
    if _is_too_deep(raw):
        raise BadDocument(_TOO_DEEP)
    try:
        return email.message_from_bytes(raw, policy=email.policy.default)
    except RecursionError:  # messages within messages have no boundaries
        raise BadDocument(_TOO_DEEP) from None


def _is_too_deep(raw: bytes) -> bool:
    """Whether more parts are open at the same time than are read: by their boundaries, in one pass."""
    boundaries: set[bytes] = set()
    around: list[bytes] = []
    for quoted, plain, line in _BOUNDARY.findall(raw):
        if quoted or plain:
            boundaries.add(quoted or plain)
            continue
        ends = line not in boundaries and line.endswith(b"--")
        name = line[:-2] if ends else line
        if name in around:  # whatever is still open within it ends here
            del around[around.index(name) :]
        if name in boundaries and not ends:
            around.append(name)
        if len(around) > DEEPEST:
            return True
    return False


def _page(number: int, message: EmailMessage) -> Page:
    shown = {name: text for name in _SHOWN if (text := _header(message, name))}
    heads = [f"{name}: {text}" for name, text in shown.items()]
    subject = shown.get("Subject", "")
    blocks = [Block("heading", subject or f"message {number}", 1)]
    if heads:
        blocks.append(Block("text", "\n".join(heads)))
    body = message.get_body(preferencelist=("plain", "html"))
    if body is not None:
        raw = body.get_payload(decode=True)
        if body.get_content_subtype() == "html":
            blocks += blocks_of(cast("bytes", raw))
        else:
            blocks += paragraphs(_text(body, raw).replace("\r\n", "\n"))
    attached = [part.get_filename() or part.get_content_type() for part in message.iter_attachments()]
    if attached:
        blocks.append(Block("text", f"Attachments (not read): {', '.join(attached)}"))
    if not heads and not _is_text(blocks):
        raise BadDocument("it has neither the headers nor the text of a mail")
    return Page(number, tuple(blocks), subject[:80])


def _is_text(blocks: list[Block]) -> bool:
    """Return whether there is text besides the heading. What is no mail has control characters."""
    text = "".join(block.text for block in blocks[1:])
    return bool(text.strip()) and all(char.isprintable() or char.isspace() for char in text.replace("\ufffd", "\0"))


def _text(body: Any, raw: object) -> str:
    """The text of a part. Without an encoding, or with one that nobody knows, it is UTF-8 or Windows' Latin."""
    if body.get_content_charset("us-ascii") != "us-ascii":
        with contextlib.suppress(LookupError, ValueError):
            return str(body.get_content())
    content = raw if isinstance(raw, bytes) else b""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def _header(message: EmailMessage, name: str) -> str:
    """A header in one line; one that is too long, as it is written and cut."""
    raw = next((str(value) for key, value in message.raw_items() if key.lower() == name.lower()), "")
    if len(raw) > _LONGEST_HEADER:
        return " ".join(raw[:_LONGEST_HEADER].split()) + " ..."
    return " ".join(str(message.get(name, "")).split())

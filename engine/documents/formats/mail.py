"""Mail: single messages and mailboxes. Attachments are listed, not read."""

import email
import email.policy
import mailbox
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import cast

from engine.documents.formats.html import blocks_of
from engine.documents.formats.pseudo_pages import paragraphs
from engine.documents.types import Block, Page, Unreadable

_SHOWN = ("From", "To", "Cc", "Date", "Subject")


def eml(path: Path) -> Iterator[Page]:
    """One message as a page."""
    yield _page(1, email.message_from_bytes(path.read_bytes(), policy=email.policy.default))


def mbox(path: Path, first: int = 1) -> Iterator[Page]:
    """One page per message, in the order of the file."""
    box = mailbox.mbox(path, create=False)
    try:
        for number, key in enumerate(box.keys(), 1):
            if number < first:
                continue
            try:
                yield _page(number, email.message_from_bytes(box.get_bytes(key), policy=email.policy.default))
            except MemoryError:
                raise
            except Exception as error:
                why = str(error) if isinstance(error, Unreadable) else type(error).__name__
                yield Page(number, label=f"message {number}", problem=f"the message is damaged ({why})")
    finally:
        box.close()


def _page(number: int, message: EmailMessage) -> Page:
    heads = [f"{name}: {_header(message, name)}" for name in _SHOWN if _header(message, name)]
    subject = _header(message, "Subject")
    blocks = [Block("heading", subject or f"message {number}", 1)]
    if heads:
        blocks.append(Block("text", "\n".join(heads)))
    body = message.get_body(preferencelist=("plain", "html"))
    if body is not None:
        raw = body.get_payload(decode=True)
        if body.get_content_subtype() == "html":
            blocks += blocks_of(cast("bytes", raw))
        else:
            blocks += paragraphs(str(body.get_content()).replace("\r\n", "\n"))
    attached = [part.get_filename() or part.get_content_type() for part in message.iter_attachments()]
    if attached:
        blocks.append(Block("text", f"Attachments (not read): {', '.join(attached)}"))
    if not heads and not _is_text(blocks):
        raise Unreadable("it has neither the headers nor the text of a mail")
    return Page(number, tuple(blocks), subject[:80])


def _is_text(blocks: list[Block]) -> bool:
    """Return whether there is text besides the heading. What is no mail has control characters."""
    text = "".join(block.text for block in blocks[1:])
    return bool(text.strip()) and all(char.isprintable() or char.isspace() for char in text.replace("\ufffd", "\0"))


def _header(message: EmailMessage, name: str) -> str:
    return " ".join(str(message.get(name, "")).split())

"""Mail: single messages and mailboxes. Attachments are read like files; those that cannot be read are named."""

import contextlib
import email
import email.policy
import io
import mailbox
import re
import time
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path, PurePath
from typing import Any, Final, cast

from engine.documents.file_types import kind_of
from engine.documents.formats import reader_of
from engine.documents.formats.html import blocks_of
from engine.documents.formats.pseudo_pages import paragraphs
from engine.documents.types import BadDocument, Block, Page

_SHOWN = ("From", "To", "Cc", "Date", "Subject")
# Python's parser of addresses takes a minute for 30,000 of them.
_LONGEST_HEADER = 4000
_LONGEST_NAME = 200
_NOT_READ: Final = "not read"
# Python's parser compares each line with the boundaries of all parts around it, and recurses for each.
DEEPEST = 30
_TOO_DEEP = "its parts are nested more than 30 deep"
_BOUNDARY = re.compile(
    rb'boundary=(?:"([^"\r\n]+)"|([^";\s]+))|^--([^\r\n]+?)[ \t]*\r?$', re.IGNORECASE | re.MULTILINE
)


# Beyond these, attachments are only named.
_MOST_ATTACHMENTS: Final = 200
_MOST_CHARS: Final = 2_000_000
_MOST_CPU_S: Final = 20.0
# Messages within messages.
_DEEPEST_MESSAGE: Final = 5
_SUFFIXES: Final = {"text/plain": ".txt", "text/html": ".html", "text/csv": ".csv", "application/pdf": ".pdf"}


class _Attached(io.BytesIO):
    """The content of an attachment, with the parts of a path's interface that readers use.

    It is never written to the disk.
    """

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.suffix = PurePath(name).suffix

    def read_bytes(self) -> bytes:
        """The whole content."""
        return self.getvalue()

    def open(self, _mode: str) -> io.BytesIO:
        """The content from its beginning."""
        return io.BytesIO(self.getvalue())


def eml(path: Path, first: int = 1, *, attachments: bool = True) -> Iterator[Page]:
    """One message as a page."""
    if first == 1:
        yield _page(1, _parsed(path.read_bytes()), attachments=attachments)


def mbox(path: Path, first: int = 1, *, attachments: bool = True) -> Iterator[Page]:
    """One page per message, in the order of the file."""
    box = mailbox.mbox(path, create=False)
    try:
        for number, key in enumerate(box.keys(), 1):
            if number < first:
                continue
            try:
                yield _page(number, _parsed(box.get_bytes(key)), attachments=attachments)
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
    """Return True if more parts are nested than will be read; checks their boundaries in one pass."""
    boundaries: set[bytes] = set()
    around: list[bytes] = []
    for quoted, plain, line in _BOUNDARY.findall(raw):
        if quoted or plain:
            boundaries.add(quoted or plain)
            continue
        ends = line not in boundaries and line.endswith(b"--")
        name = line[:-2] if ends else line
        if name in around:  # parts that are still open inside it end here
            del around[around.index(name) :]
        if name in boundaries and not ends:
            around.append(name)
        if len(around) > DEEPEST:
            return True
    return False


def _page(number: int, message: EmailMessage, *, attachments: bool) -> Page:
    subject = _header(message, "Subject")
    reading = _Attachments() if attachments else None
    blocks = [*_message(message, subject or f"message {number}", 1), *_attachments(message, reading, 1)]
    if not _is_text(blocks) and not any(_header(message, name) for name in _SHOWN):
        raise BadDocument("it has neither the headers nor the text of a mail")
    return Page(number, tuple(blocks), subject[:80])


def _message(message: EmailMessage, title: str, level: int) -> list[Block]:
    """Title, headers and text of a message."""
    blocks = [Block("heading", title, level)]
    heads = [f"{name}: {text}" for name in _SHOWN if (text := _header(message, name))]
    if heads:
        blocks.append(Block("text", "\n".join(heads)))
    body = _body(message)
    if body is not None and _bytes(body).strip():
        try:
            blocks += _text_blocks(body)
        except BadDocument as error:  # headers and attachments are still of use
            blocks.append(Block("text", f"The text of this mail is not read: {error}"))
    return blocks


def _body(message: EmailMessage) -> EmailMessage | None:
    """The text of a message: as plain text, or as HTML if that is empty."""
    plain = message.get_body(preferencelist=("plain",))
    if plain is None or not _bytes(cast("EmailMessage", plain)).strip():
        return cast("EmailMessage | None", message.get_body(preferencelist=("html",)) or plain)
    return cast("EmailMessage", plain)


def _text_blocks(part: EmailMessage) -> Iterator[Block]:
    raw = _bytes(part)
    if part.get_content_subtype() == "html":
        yield from blocks_of(raw, part.get_content_charset())
    else:
        yield from paragraphs(_text(part, raw).replace("\r\n", "\n"))


class _Attachments:
    """How much of the attachments of one message was read."""

    def __init__(self) -> None:
        self.left, self.chars_left = _MOST_ATTACHMENTS, _MOST_CHARS
        self._started_s = time.process_time()

    @property
    def is_over(self) -> bool:
        """True if no more attachments are read."""
        return self.left <= 0 or time.process_time() - self._started_s > _MOST_CPU_S

    def read(self, content: bytes, name: str) -> Iterator[Block]:
        """The blocks of an attachment. Raises: BadDocument: it cannot be read; any error of its reader."""
        kind = kind_of(name)
        if kind is None or kind == "mbox":
            raise BadDocument(_NOT_READ)
        is_empty, problem = True, ""
        for page in reader_of(kind)(_Attached(content, name)):
            problem = problem or page.problem
            for block in page.blocks:
                self.chars_left -= len(block.text)
                if self.chars_left < 0:
                    raise BadDocument(f"the rest of more than {_MOST_CHARS:,} characters")
                is_empty = False
                yield block
        if problem or is_empty:
            raise BadDocument(problem or "there is no text in it")


def _attachments(message: EmailMessage, reading: _Attachments | None, depth: int) -> Iterator[Block]:
    unread: list[str] = []
    for number, part in enumerate(_leaves(message, _body(message)), 1):
        name = _name(part, number)
        if reading is None or reading.is_over or depth > _DEEPEST_MESSAGE:
            unread.append(name)
            continue
        reading.left -= 1
        try:
            inner = _inner_message(part, name)
            if inner is not None:
                yield from _message(inner, f"Attached message: {_header(inner, 'Subject') or name}", 2)
                yield from _attachments(inner, reading, depth + 1)
            else:
                yield Block("heading", f"Attachment: {name}", 2)
                yield from reading.read(_content(part), name)
        except MemoryError:
            raise
        except Exception as error:
            why = str(error) if isinstance(error, BadDocument) else f"it is damaged ({type(error).__name__})"
            unread.append(name if why == _NOT_READ else f"{name} ({why})")
    if unread:
        yield Block("text", f"Attachments (not read): {', '.join(unread)}")


def _name(part: EmailMessage, number: int) -> str:
    name = " ".join((part.get_filename() or "").split())[-_LONGEST_NAME:]
    suffix = _SUFFIXES.get(part.get_content_type(), "")
    if suffix and kind_of(name) is None:
        return f"{name or f'attachment {number}'}{suffix}"
    return name or part.get_content_type()


def _inner_message(part: EmailMessage, name: str) -> EmailMessage | None:
    """The attached message, if the attachment is one."""
    if part.get_content_type() == "message/rfc822" and part.is_multipart():
        return cast("EmailMessage", part.get_payload(0))
    return _parsed(_bytes(part)) if kind_of(name) == "eml" else None


def _bytes(part: EmailMessage) -> bytes:
    return cast("bytes", part.get_payload(decode=True) or b"")


def _content(part: EmailMessage) -> bytes:
    """The content of an attachment; plain text that states an encoding is converted to UTF-8."""
    raw = _bytes(part)
    if part.get_content_type() in ("text/plain", "text/csv") and part.get_content_charset():
        return _text(part, raw).encode("utf-8", "replace")
    return raw


def _leaves(message: EmailMessage, body: EmailMessage | None, *, is_choice: bool = False) -> Iterator[EmailMessage]:
    """Parts that are not the text of the message, another form of it, or shown in it. A message is one part."""
    if message.get_content_maintype() != "multipart":
        return
    is_choice = is_choice or message.get_content_subtype() == "alternative"
    for part in cast("Iterator[EmailMessage]", message.iter_parts()):
        kind, is_named = part.get_content_maintype(), bool(part.get_filename())
        is_other_form = is_choice and kind == "text" and not is_named
        is_shown = message.get_content_subtype() == "related" and (kind == "image" or not is_named)
        if part is body or (kind != "multipart" and (is_other_form or is_shown)):
            continue
        if kind == "multipart":
            yield from _leaves(part, body, is_choice=is_choice)
        else:
            yield part


def _is_text(blocks: list[Block]) -> bool:
    """Return whether there is text besides the heading. Files that are not mail have control characters."""
    text = "".join(block.text for block in blocks[1:])
    return bool(text.strip()) and all(char.isprintable() or char.isspace() for char in text.replace("\ufffd", "\0"))


def _text(body: Any, raw: object) -> str:
    """The text of a part. Without an encoding, or with an unknown one, it is UTF-8 or Windows' Latin."""
    if body.get_content_charset("us-ascii") != "us-ascii":
        with contextlib.suppress(LookupError, ValueError):
            return str(body.get_content())
    content = raw if isinstance(raw, bytes) else b""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def _header(message: EmailMessage, name: str) -> str:
    """A header on one line; an overlong one is cut and not decoded."""
    raw = next((str(value) for key, value in message.raw_items() if key.lower() == name.lower()), "")
    if len(raw) > _LONGEST_HEADER:
        return " ".join(raw[:_LONGEST_HEADER].split()) + " ..."
    return " ".join(str(message.get(name, "")).split())

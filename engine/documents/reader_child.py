"""Child process that opens documents: parsers are native or old, and files are untrusted. See reader_process.py.

A request names a file and the first page to read. The response holds as many pages as time and size limits allow.
The document stays open for the next request.
"""

import time
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from devices.child_service import serve
from devices.msgspec_lock import learned
from engine.core.sendable import sendable
from engine.documents.formats import reader_of
from engine.documents.types import BadDocument, Block, Chunk, Page, PageRead, ReadAnswer, ReadRequest

# A response ends after this much work, so that progress is visible and killing the process loses little.
_ANSWER_S: Final = 4.0
_ANSWER_CHARS: Final = 400_000
_decode = msgspec.msgpack.Decoder(learned(ReadRequest)).decode


class _Open:
    """A document that is being read, and its next page."""

    def __init__(self, request: ReadRequest) -> None:
        path = Path(request.path)
        read = reader_of(request.kind)
        self.key = _key(request)
        self.num_pages = 0
        if request.kind in ("pdf", "picture"):
            pages: Iterator[Page] = read(path, request.first, ocr=request.ocr)
            self.num_pages = _pdf_pages(path) if request.kind == "pdf" else 0
        elif request.kind in ("eml", "mbox"):
            pages = read(path, request.first, attachments=request.attachments)
        else:
            pages = dropwhile(lambda page: page.number < request.first, read(path))
        self.pages = pages
        self.cutter = Cutter()
        self.next = self.first = request.first
        self.has_text = False


def _key(request: ReadRequest) -> tuple[object, ...]:
    return (request.path, request.ocr, request.attachments)


def _pdf_pages(path: Path) -> int:
    from engine.documents.formats.pdf import open_pdf

    document = open_pdf(path)
    try:
        return len(document)
    finally:
        document.close()


class _Reading:
    """Answers read requests; keeps the last document open."""

    def __init__(self) -> None:
        self._open: _Open | None = None

    def answer(self, body: bytes) -> bytes:
        """Answer one request (msgpack in, msgpack out)."""
        return msgspec.msgpack.encode(self._read(_decode(body)))

    def _read(self, request: ReadRequest) -> ReadAnswer:
        try:
            if not request.limit:
                reader_of(request.kind)
                return ReadAnswer()
            document = self._open
            if document is None or document.key != _key(request) or document.next != request.first:
                document = self._open = _Open(request)
            return self._some(document, request.limit)
        except BadDocument as error:
            problem = str(error)
        except OSError as error:
            problem = error.strerror or str(error)
        except MemoryError:
            raise SystemExit(1) from None  # a new process has more memory; the parent retries page by page
        except Exception as error:
            problem = f"it is damaged ({type(error).__name__})"
        self._open = None
        return ReadAnswer(problem=problem)

    def _some(self, document: _Open, limit: int) -> ReadAnswer:
        pages: list[PageRead] = []
        started_at, size = time.monotonic(), 0
        for page in document.pages:
            read = document.cutter.cut(page)
            pages.append(read)
            document.next = page.number + 1
            size += sum(len(chunk.text) for chunk in read.chunks)
            if len(pages) >= limit or size >= _ANSWER_CHARS or time.monotonic() - started_at > _ANSWER_S:
                document.has_text = document.has_text or any(page.chunks or page.problem for page in pages)
                return ReadAnswer(pages=tuple(pages), done=False, num_pages=document.num_pages)
        self._open = None
        document.has_text = document.has_text or any(page.chunks or page.problem for page in pages)
        problem = "" if document.has_text or document.first > 1 else "there is no text in it"
        return ReadAnswer(pages=tuple(pages), num_pages=document.num_pages or document.next - 1, problem=problem)


# About 220 tokens: small embedding models were trained on this length (all-MiniLM-L6-v2: 256).
TARGET_CHARS: Final = 900
MOST_CHARS: Final = 1300
# A larger table is split between rows, and each chunk repeats the table head. About as long as a passage of text:
# BM25 divides by the length, so the one row that answers would lose to short passages with common words.
TABLE_CHARS: Final = 1000
# A longer table head is not repeated.
_HEAD_CHARS: Final = TABLE_CHARS // 2
# Marks after which a long text is split, the best first. Chinese and Japanese have no spaces.
_CUTS: Final = ("\n", ". ", "? ", "! ", "\u3002", "\uff1f", "\uff01", "; ", " ", "\u3001", "\uff0c")
_SOFT_HYPHEN: Final = "\u00ad"


class Cutter:
    """Splits one document's pages into chunks, in order; tracks the current headings."""

    def __init__(self) -> None:
        self._headings: list[tuple[int, str]] = []

    def cut(self, page: Page) -> PageRead:
        return PageRead(page.number, _clean(page.label), tuple(self._chunks(page)), _clean(page.problem))

    def _chunks(self, page: Page) -> Iterator[Chunk]:
        blocks: list[Block] = []
        path = self._path()

        def whole() -> Iterator[Chunk]:
            text = "\n\n".join(block.text for block in blocks)
            if text.strip():
                kind = blocks[-1].kind if len(blocks) == 1 else "text"
                yield Chunk(path, kind, text, blocks[0].line)
            blocks.clear()

        for block in map(_cleaned, page.blocks):
            if block.kind == "heading":
                yield from whole()
                self._enter(block)
                path = self._path()
                blocks.append(block)
                continue
            for piece in _pieces(block):
                if sum(len(b.text) for b in blocks) + len(piece.text) > MOST_CHARS and _says_something(blocks):
                    yield from whole()
                blocks.append(piece)
                if sum(len(b.text) for b in blocks) >= TARGET_CHARS:
                    yield from whole()
        yield from whole()

    def _enter(self, heading: Block) -> None:
        while self._headings and self._headings[-1][0] >= heading.level:
            self._headings.pop()
        self._headings.append((heading.level, heading.text[:120]))

    def _path(self) -> str:
        return " » ".join(text for _, text in self._headings[-4:])


def _cleaned(block: Block) -> Block:
    text = _clean(block.text)
    return block if text is block.text else replace(block, text=text)


def _clean(text: str) -> str:
    """The text without soft hyphens, which split words in a search, and with U+FFFD for lone surrogates."""
    return text if text.isascii() else sendable(text).replace(_SOFT_HYPHEN, "")


def _says_something(blocks: list[Block]) -> bool:
    """Return whether there is more than a heading; a heading belongs to the text after it."""
    return any(block.kind != "heading" for block in blocks)


def _pieces(block: Block) -> Iterator[Block]:
    if block.kind == "table":
        yield from _table(block)
    elif len(block.text) <= MOST_CHARS:
        yield block
    else:
        yield from _long(block)


def _table(block: Block) -> Iterator[Block]:
    rows = block.text.split("\n")
    head = rows[:2] if len(rows) > 1 and set(rows[1]) <= set("|-: ") else rows[:1]
    if sum(map(len, head)) > _HEAD_CHARS:
        head = []
    head_chars = sum(map(len, head))
    part, size, line = list(head), head_chars, block.line
    for number, row in enumerate(rows[len(head) :], len(head)):
        for piece in _split(row, TABLE_CHARS):
            if size + len(piece) > TABLE_CHARS and len(part) > len(head):
                yield Block("table", "\n".join(part), line=line)
                part, size, line = list(head), head_chars, _line_of(block, number)
            part.append(piece)
            size += len(piece)
    yield Block("table", "\n".join(part), line=line)


def _line_of(table: Block, row: int) -> int:
    """The line of the file that a row of a table is in; 0 if it is unknown."""
    if table.lines:
        return table.lines[row]
    return table.line + row if table.line else 0


def _long(block: Block) -> Iterator[Block]:
    """Split at line ends, else at sentence ends, else anywhere; chunks are near the target size."""
    line = block.line
    for piece in _split(block.text, MOST_CHARS):
        text = piece.lstrip("\n")
        if text.strip():
            first = line + len(piece) - len(text) if line else 0
            yield Block(block.kind, text.rstrip("\n"), line=first)
        line += piece.count("\n") if line else 0


def _split(text: str, most: int) -> Iterator[str]:
    """Pieces of at most `most` characters, which together are the text."""
    start = 0
    while len(text) - start > most:
        # Copy one window at a time: the rest of a file without line ends may have 100 million characters.
        window = text[start : start + most]
        second_half = window[TARGET_CHARS // 2 :]
        mark = next((mark for mark in _CUTS if mark in second_half), "")
        cut = window.rfind(mark) + len(mark) if mark else most
        yield window[:cut]
        start += cut
    yield text[start:]


if __name__ == "__main__":
    serve(_Reading().answer)

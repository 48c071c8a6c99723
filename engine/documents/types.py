"""Parts of a document, and the messages of the child process that reads documents."""

from typing import Final, Literal

import msgspec

BlockKind = Literal["heading", "text", "table", "code"]
# Parts of formats without pages (text, HTML, Word) are about as long as a printed page.
PART_CHARS: Final = 3000


class Block(msgspec.Struct, frozen=True):
    """A coherent part of a page. A heading has a `level` from 1; `line` counts from 1 (0: unknown).

    A table has one row per line, its head first; cells are separated by " | ". `lines` are the lines of its rows in
    the file, where a row may have several.
    """

    kind: BlockKind
    text: str
    level: int = 0
    line: int = 0
    lines: tuple[int, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """One page, slide, sheet, message or part. `problem` says why it could not be read."""

    number: int
    blocks: tuple[Block, ...] = ()
    label: str = ""
    problem: str = ""


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A passage: text of one page under one heading. `heading` is the path of headings, outermost first."""

    heading: str
    kind: BlockKind
    text: str
    line: int = 0


class PageRead(msgspec.Struct, frozen=True):
    """A page as passages, in order and without gaps."""

    number: int
    label: str
    chunks: tuple[Chunk, ...]
    problem: str = ""


# Problems of pages that are pictures: OCR was not requested, or it is not installed here.
NEEDS_OCR: Final = "the page is an image; reading it needs OCR"
NO_OCR_HERE: Final = "it is an image, and OCR is not installed here"
# Includes the values that earlier versions stored.
OCR_MISSING: Final = (NO_OCR_HERE, f"{NO_OCR_HERE} (pip install 'tessera[ocr]')")
NO_TEXT: Final = "it is not text"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One document. `state` is reading, ready or failed; `unread_pages` could not be read.

    Files and folders that are not read by rule have the state skipped, and no id.
    """

    id: int
    path: str
    kind: str
    title: str
    state: str
    size_bytes: int
    pages: int = 0
    unread_pages: int = 0
    chars: int = 0
    problem: str = ""
    read_at: float = 0.0


class DocumentRow(Document, frozen=True, kw_only=True):
    """A document's row in the index, with its file's modification time and the next page to read."""

    mtime_ns: int
    next_page: int


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A passage with its location: `start` to `end` of the page's text, in characters.

    `line` is its first line in formats with lines (0: none). `score`, at most 1, ranks the passages of one query;
    do not compare it across queries.
    """

    id: int
    document: int
    path: str
    title: str
    page: int
    label: str = ""
    heading: str = ""
    text: str = ""
    line: int = 0
    start: int = 0
    end: int = 0
    score: float = 0.0
    cosine: float | None = None
    relevance: float | None = None


# Why a sentence may be wrong although its words are in the passage: one of the two denies something, its numbers
# and names belong to different statements in the passage, or the passage states the reverse.
Doubt = Literal["", "negation", "apart", "order"]


class CheckedSentence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sentence of an answer (`start` to `end`, in characters) and whether a passage supports it.

    `passage` is the number of the best match (from 1). `overlap`: the share of the sentence's content words in it;
    `cosine` of both; `missing`: names, numbers and codes of the sentence that those sentences of the passage lack;
    `doubt`: why it may be wrong although its words are there.
    """

    start: int
    end: int
    carried: bool
    passage: int = 0
    overlap: float = 0.0
    cosine: float | None = None
    missing: tuple[str, ...] = ()
    doubt: Doubt = ""


class ReadRequest(msgspec.Struct, frozen=True):
    """Read from page `first` (from 1), at most `limit` pages. With `ocr`, scanned pages are recognized by OCR.

    A limit of 0 reads nothing and only imports the reader of the kind. Without `attachments`, those
    of mails are only named.
    """

    path: str
    kind: str
    first: int = 1
    limit: int = 64
    ocr: bool = False
    attachments: bool = True


class ReadAnswer(msgspec.Struct, frozen=True):
    """The pages read so far. `num_pages` is 0 if the format does not state it in advance.

    `problem` says why the document cannot be read, or not any further.
    """

    pages: tuple[PageRead, ...] = ()
    done: bool = True
    title: str = ""
    num_pages: int = 0
    problem: str = ""


class BadDocument(Exception):
    """A file, or one page of it, that cannot be read; the message says why."""

"""What a document is made of, and what the child that reads documents answers."""

from typing import Final, Literal

import msgspec

BlockKind = Literal["heading", "text", "table", "code"]
# Parts of formats without pages (text, HTML, Word) are about as long as a printed page.
PART_CHARS: Final = 3000


class Block(msgspec.Struct, frozen=True):
    """A piece of a page that belongs together. A heading has a `level` from 1; `line` counts from 1, 0: not known.

    A table is one row a line, cells parted by " | ", its head first.
    """

    kind: BlockKind
    text: str
    level: int = 0
    line: int = 0


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


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One document. `state`: reading, ready, failed; `unread_pages` could not be read."""

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
    """A document as the index has it: what its file was like, and the page at which reading goes on."""

    mtime_ns: int
    next_page: int


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A passage, and where it is: `start` to `end` of the page's text, in characters.

    `line` is its first line in formats that have lines (0: none). `score`, at most 1, orders the passages found for
    one question and says nothing across questions. Ranks count from 1 and say by which way a passage was found.
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
    words_rank: int | None = None
    meaning_rank: int | None = None
    cosine: float | None = None
    relevance: float | None = None


class CheckedSentence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sentence of an answer (`start` to `end`, in characters) and whether a passage carries it.

    `passage` is the number of the one that fits best (from 1). `overlap`: the share of its telling words that stand
    there; `cosine` of both; `missing`: names and numbers of the sentence that are in no passage.
    """

    start: int
    end: int
    carried: bool
    passage: int = 0
    overlap: float = 0.0
    cosine: float | None = None
    missing: tuple[str, ...] = ()


class ReadRequest(msgspec.Struct, frozen=True):
    """Read on from page `first` (from 1), at most `limit` pages. With `ocr` scanned pages are read as pictures.

    A limit of 0 reads nothing: what the kind needs is imported.
    """

    path: str
    kind: str
    first: int = 1
    limit: int = 64
    ocr: bool = False


class ReadAnswer(msgspec.Struct, frozen=True):
    """Pages as far as they were read. `num_pages` is 0 where the format does not tell it beforehand.

    `problem` says why the document cannot be read at all, or not further.
    """

    pages: tuple[PageRead, ...] = ()
    done: bool = True
    title: str = ""
    num_pages: int = 0
    problem: str = ""


class Unreadable(Exception):
    """A file, or one page of it, that cannot be read; the message says why."""

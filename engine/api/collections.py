"""/tessera/v1/collections: indexing, search and citation of the user's documents."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.documents.types import CheckedSentence, Document, Passage
from engine.message_catalog.reasons import Reason

Name = Annotated[str, Meta(min_length=1, max_length=120)]
Source = Annotated[str, Meta(min_length=1, max_length=4096)]
ModelChoice = Annotated[str, Meta(max_length=200)]


class CollectionRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/collections. Sources are absolute paths of files and folders.

    `follow` updates the index when the files change. `ocr` reads scanned pages and images. `open` allows queries
    from every client with the chat scope, not only from the user's own programs. A model is an id, "" for a local
    model that the server selects, or "none". A model on another server needs `allow_remote`, because the text of
    the collection is sent there.
    """

    name: Name
    sources: Annotated[tuple[Source, ...], Meta(max_length=1000)] = ()
    follow: bool = True
    ocr: bool = False
    open: bool = False
    embedding_model: ModelChoice = ""
    reranker: ModelChoice = ""
    allow_remote: bool = False


class CollectionChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/collections/{collection}: changes the given fields; adds and removes sources.

    `allow_remote` True permits sending the text to the servers that run the collection's models. False revokes that
    permission.
    """

    name: Name | None = None
    add: Annotated[tuple[Source, ...], Meta(max_length=1000)] = ()
    remove: Annotated[tuple[Source, ...], Meta(max_length=1000)] = ()
    follow: bool | None = None
    ocr: bool | None = None
    open: bool | None = None
    embedding_model: ModelChoice | None = None
    reranker: ModelChoice | None = None
    allow_remote: bool | None = None


class SentTo(msgspec.Struct, frozen=True, kw_only=True):
    """Another server that receives text of a collection because it runs this model of the collection."""

    model: str
    server: str


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """One collection and the state of its index.

    `state` is "reading" (`files_done` of `files` are read), "embedding" (keyword search already covers everything)
    or "ready". `embedded` of `chunks` have a vector. `sent_to` lists other servers that receive its text.
    `scanned_pages` of the `unread_pages` are pictures of text, which OCR could read if `ocr_installed`.
    `skipped` files and folders are not read by rule: hidden ones, links, and those of ignore files.
    `problems` lists the reasons why the index is incomplete.
    """

    id: str
    name: str
    sources: tuple[str, ...] = ()
    follow: bool = True
    ocr: bool = False
    open: bool = False
    embedding_model: str = ""
    reranker: str = ""
    created_at: float = 0.0
    state: Literal["reading", "embedding", "ready"] = "ready"
    files: int = 0
    files_done: int = 0
    current: str = ""
    documents: int = 0
    failed: int = 0
    pages: int = 0
    unread_pages: int = 0
    scanned_pages: int = 0
    skipped: int = 0
    ocr_installed: bool = False
    chunks: int = 0
    embedded: int = 0
    chars: int = 0
    index_bytes: int = 0
    embedded_by: str = ""
    sent_to: tuple[SentTo, ...] = ()
    problems: tuple[Reason, ...] = msgspec.field(default=(), name="problem_details")


class Collections(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/collections, oldest first."""

    collections: tuple[Collection, ...]


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """DELETE /tessera/v1/collections/{collection}; the source files are not deleted."""

    id: str
    name: str


class Documents(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/collections/{collection}/documents, sorted by path; pass `after` to the next call."""

    documents: tuple[Document, ...]
    after: str | None = None


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a document, with the reason if it could not be read."""

    number: int
    label: str = ""
    problem: str = ""


class DocumentPages(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/collections/{collection}/documents/{document}."""

    document: Document
    pages: tuple[PageState, ...]


class PageText(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/collections/{collection}/documents/{document}/pages/{page}: the extracted text of a page.

    `start` and `end` delimit the passage requested with `?passage=`; both are 0 without one.
    """

    path: str
    title: str
    number: int
    label: str = ""
    text: str = ""
    problem: str = ""
    start: int = 0
    end: int = 0
    num_pages: int = 0


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/collections/{collection}/search."""

    query: Annotated[str, Meta(min_length=1, max_length=8000)]
    limit: Annotated[int, Meta(ge=1, le=50)] = 8
    ways: Literal["both", "words", "meaning"] = "both"


class SearchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Search results, best passage first.

    `found` is an estimate from `coverage` and `cosine`: False if no passage seems relevant. `coverage` is the share
    of the query's content words in one of the best passages. `cosine` is the similarity of the nearest passage.
    `ways` are the search modes that were used; `notes` give the reason if a mode was not used.
    """

    passages: tuple[Passage, ...] = ()
    found: bool = False
    coverage: float = 0.0
    cosine: float | None = None
    ways: Literal["both", "words", "meaning"] = "both"
    reranked_by: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


class Citations(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sources of a response: its field `tessera.collection`.

    `mode` is "whole" (the model got all `documents`), "passages" or "none" (there is no text to use). `found` is
    False for a weak match; the model gets the best passages anyway. `why` gives the reason for the mode;
    `why_detail` is the same as structured data. `checked` arrives at the end of the response.
    """

    id: str
    name: str
    mode: Literal["whole", "passages", "none"]
    why: str = ""
    why_detail: Reason | None = None
    found: bool = False
    tokens: int = 0
    documents: int = 0
    passages: tuple[Passage, ...] = ()
    checked: tuple[CheckedSentence, ...] = ()
    notes: tuple[str, ...] = ()

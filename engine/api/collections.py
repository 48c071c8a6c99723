"""/tessera/v1/collections: a user's documents as they are indexed, searched and cited."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.documents.types import CheckedSentence, Document, Passage
from engine.message_catalog.reasons import Reason

__all__ = [
    "CheckedSentence",
    "Collection",
    "CollectionChange",
    "CollectionRequest",
    "Collections",
    "Document",
    "DocumentPages",
    "Documents",
    "Grounds",
    "ModelChoice",
    "Name",
    "PageState",
    "PageText",
    "Passage",
    "Removed",
    "SearchAnswer",
    "SearchRequest",
    "SentTo",
    "Source",
]

Name = Annotated[str, Meta(min_length=1, max_length=120)]
Source = Annotated[str, Meta(min_length=1, max_length=4096)]
ModelChoice = Annotated[str, Meta(max_length=200)]


class CollectionRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/collections. Sources are absolute paths of files and folders.

    `follow` keeps the index up to date with the files; `ocr` reads scanned pages and pictures; `open` lets everyone
    ask it who may chat, not only the user's own programs. Models: an id, "" for a local one of the server's choice,
    "none". A model that another server runs needs `allow_remote`: the text of the collection is sent there.
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
    """POST /tessera/v1/collections/{collection}: what is given is changed; sources are added and removed.

    `allow_remote` true agrees that the text is sent to the servers that run its models, false takes that back.
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
    """Another server that gets text of a collection, because it runs this model of the collection."""

    model: str
    server: str


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """One collection and how far its index is.

    `state`: reading (files that need work are read: `files_done` of `files`), embedding (all is found by words
    already), ready. `embedded` of `chunks` have a vector. `sent_to` are other servers that get its text. `problems`
    say what keeps the index from being whole, `problem_details` the same as facts.
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
    chunks: int = 0
    embedded: int = 0
    chars: int = 0
    index_bytes: int = 0
    embedded_by: str = ""
    sent_to: tuple[SentTo, ...] = ()
    problems: tuple[str, ...] = ()
    problem_details: tuple[Reason, ...] = ()


class Collections(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/collections, oldest first."""

    collections: tuple[Collection, ...]


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """DELETE /tessera/v1/collections/{collection}; the files themselves stay."""

    id: str
    name: str


class Documents(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/collections/{collection}/documents, by path; `after` begins the next call."""

    documents: tuple[Document, ...]
    after: str | None = None


class PageState(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a document, and why it could not be read."""

    number: int
    label: str = ""
    problem: str = ""


class DocumentPages(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/collections/{collection}/documents/{document}."""

    document: Document
    pages: tuple[PageState, ...]


class PageText(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/collections/{collection}/documents/{document}/pages/{page}: a page as it was read.

    `start` to `end` is the passage that was asked for with `?passage=`; both 0 without one.
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
    """Passages, best first. `found` is false where nothing seems to bear on the question: a guess by two numbers.

    `coverage`: the share of the question's telling words in one of the best passages; `cosine`: of the nearest one.
    `ways` are those that were used; `notes` say why one was not.
    """

    passages: tuple[Passage, ...] = ()
    found: bool = False
    coverage: float = 0.0
    cosine: float | None = None
    ways: Literal["both", "words", "meaning"] = "both"
    reranked_by: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


class Grounds(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer was made from; the field `tessera.collection` of an answer.

    `mode`: whole (every document was given to the model, `documents` of them), passages, or none (there
    is no text to give). `found` is false where the match is weak; the best passages are given all the same.
    `why` says how that was chosen, `why_detail` the same as facts. `checked` comes with the end of the answer.
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

"""The index of one collection on disk: documents, pages, passages, full text and vectors.

It is built from the files, so losing it costs only the time to read them again. Every change is one transaction, so
a killed process leaves an index of complete pages.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from devices.msgspec_lock import learned
from engine.core.index_database import VECTOR_TABLES, IndexStore, open_index
from engine.documents.errors import CollectionUnusable
from engine.documents.query_terms import TOKENIZER, Stemmer, searchable
from engine.documents.types import NEEDS_OCR, OCR_MISSING, DocumentRow, PageRead, Passage

_VERSION: Final = 1
_SCHEMA: Final = f"""
CREATE TABLE document(id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
  size_bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, title TEXT NOT NULL DEFAULT '', state TEXT NOT NULL,
  num_pages INTEGER NOT NULL DEFAULT 0, next_page INTEGER NOT NULL DEFAULT 1, num_chars INTEGER NOT NULL DEFAULT 0,
  problem TEXT NOT NULL DEFAULT '', read_at REAL NOT NULL DEFAULT 0, version INTEGER NOT NULL DEFAULT 0);
CREATE TABLE page(document_id INTEGER NOT NULL REFERENCES document(id) ON DELETE CASCADE, number INTEGER NOT NULL,
  label TEXT NOT NULL, problem TEXT NOT NULL, PRIMARY KEY(document_id, number)) WITHOUT ROWID;
CREATE INDEX page_problem ON page(document_id) WHERE problem <> '';
CREATE TABLE chunk(id INTEGER PRIMARY KEY AUTOINCREMENT, document_id INTEGER NOT NULL
  REFERENCES document(id) ON DELETE CASCADE, page INTEGER NOT NULL, heading TEXT NOT NULL, kind TEXT NOT NULL,
  text TEXT NOT NULL, line INTEGER NOT NULL);
CREATE INDEX chunk_page ON chunk(document_id, page);
CREATE VIRTUAL TABLE full_text USING fts5(title, heading, body, content='', contentless_delete=1,
  tokenize="{" ".join(TOKENIZER)}");
CREATE VIRTUAL TABLE term USING fts5vocab(full_text, row);
{VECTOR_TABLES}"""
# Files and folders of the sources that are not read by rule, with the reason.
_SKIPPED: Final = "CREATE TABLE IF NOT EXISTS skipped(path TEXT PRIMARY KEY, reason TEXT NOT NULL) WITHOUT ROWID"
# Vectors of removed passages by content hash, until the pass over the files ends: a renamed folder has the same
# texts in other places. In memory, so nothing of a deleted file stays on disk.
_SPARE: Final = "CREATE TEMP TABLE spare(digest BLOB PRIMARY KEY, vector BLOB NOT NULL) WITHOUT ROWID"
# The form of the words in the full-text index.
_WORDS: Final = "one form, pairs of unspaced characters"
# Passages that are indexed again per transaction.
_AT_ONCE: Final = 500
READING, READY, FAILED, SKIPPED = "reading", "ready", "failed", "skipped"


class Ticket(msgspec.Struct, frozen=True):
    """Permission to add pages to a document from page `first` on; invalid after another `begin` or `resume`."""

    document_id: int
    version: int
    first: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a collection: `embedded` passages have a vector, `unread_pages` could not be read.

    `scanned_pages` of these are pictures of text that OCR could read. `skipped` paths are not read by rule.
    """

    documents: int = 0
    failed: int = 0
    pages: int = 0
    unread_pages: int = 0
    scanned_pages: int = 0
    chunks: int = 0
    embedded: int = 0
    chars: int = 0
    skipped: int = 0


_DOCUMENT: Final = (
    "SELECT id, path, kind, title, state, size_bytes, num_pages,"
    " (SELECT count(*) FROM page WHERE document_id=document.id AND problem <> ''),"
    " num_chars, problem, read_at, mtime_ns, next_page FROM document"
)
_WITH_PROBLEM: Final = (
    "(problem <> '' OR EXISTS (SELECT 1 FROM page WHERE document_id=document.id AND problem <> ''))"
)
# A path of the table `skipped` with the columns of a document.
_AS_DOCUMENT: Final = f"SELECT 0, path, '{SKIPPED}', '', '{SKIPPED}', 0, 0, 0, 0, reason, 0.0, 0, 0 FROM skipped"  # noqa: S608  # fixed
_CHUNK: Final = (
    "SELECT chunk.id, chunk.document_id, path, title, page, label, heading, text, line FROM chunk"
    " JOIN document ON document.id=chunk.document_id JOIN page ON page.document_id=document.id"
    " AND page.number=chunk.page"
)


class Store(IndexStore):
    """Typed access to the tables. One connection under one lock; safe from any thread.

    The file is opened on first use, and again after `rest`, so an idle index holds no file descriptors. `on_open`
    is called before it is opened.
    """

    def __init__(self, path: Path, on_open: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.path = path
        self.used_at = 0.0
        self._on_open = on_open
        self._opened: tuple[apsw.Connection, Stemmer] | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._opened is not None

    def _open(self) -> tuple[apsw.Connection, Stemmer]:
        """Open the file if needed; hold `lock`. Raises: CollectionUnusable."""
        self.used_at = time.monotonic()
        if self._opened is None:
            if self._closed:
                raise CollectionUnusable(self.path, "it was removed")
            self._on_open()
            try:
                db = open_index(self.path, _SCHEMA, _VERSION)
                db.execute(_SPARE)
                db.execute(_SKIPPED)
                self._opened = db, Stemmer(db)
            except (OSError, apsw.Error) as error:
                raise CollectionUnusable(self.path, str(error)) from error
        return self._opened

    @property
    def _db(self) -> apsw.Connection:
        return self._open()[0]

    @property
    def stemmer(self) -> Stemmer:
        """The stemmer, for queries of other modules; hold `lock`."""
        return self._open()[1]

    @property
    def connection(self) -> apsw.Connection:
        """The connection, for queries of other modules; hold `lock`."""
        return self._open()[0]

    def rest(self) -> bool:
        """Close the file until it is needed again; False if it is in use."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened[0].close()
        finally:
            self.lock.release()
        return True

    # ------------------------------------------------------------------ writing

    def begin(self, path: str, kind: str, size_bytes: int, mtime_ns: int, title: str) -> "Ticket":
        """Start reading a document, or reading it again; old passages stay until `add_pages`."""
        with self.lock, self._db:
            self._db.execute(
                "INSERT INTO document(path, kind, size_bytes, mtime_ns, title, state, next_page)"
                " VALUES(?,?,?,?,?,?,0)"
                " ON CONFLICT(path) DO UPDATE SET kind=excluded.kind, size_bytes=excluded.size_bytes,"
                " mtime_ns=excluded.mtime_ns, title=excluded.title, state=excluded.state, next_page=0, problem='',"
                " version=version+1",
                (path, kind, size_bytes, mtime_ns, title, READING),
            )
            self._db.execute("DELETE FROM skipped WHERE path=?", (path,))
        return self._ticket(path)

    def resume(self, path: str) -> "Ticket":
        """Continue a document that was begun. Earlier tickets become invalid."""
        with self.lock, self._db:
            self._db.execute("UPDATE document SET version=version+1 WHERE path=?", (path,))
        return self._ticket(path)

    def _ticket(self, path: str) -> "Ticket":
        with self.lock:
            row = self._db.execute("SELECT id, version, max(next_page, 1) FROM document WHERE path=?", (path,)).get
        return Ticket(*row)

    def add_pages(self, ticket: "Ticket", pages: Sequence[PageRead], *, done: bool, problem: str = "") -> bool:
        """Store pages of a document in one transaction; the first pages replace the old passages.

        Returns False and stores nothing if the document is being read again or was removed.
        """
        document_id = ticket.document_id
        with self.lock, self._db:
            row = self._db.execute(
                "SELECT title, next_page FROM document WHERE id=? AND version=?", (document_id, ticket.version)
            ).get
            if row is None:
                return False
            title, next_page = row
            if next_page == 0:
                self._clear(document_id)
            for page in pages:
                self._add_page(document_id, title, page)
            state = FAILED if problem and not pages and next_page <= 1 else READY if done else READING
            last = pages[-1].number if pages else max(next_page - 1, 0)
            self._db.execute(
                "UPDATE document SET state=?, problem=?, next_page=?, num_pages=?, read_at=?, num_chars=num_chars+?"
                " WHERE id=?",
                (
                    state,
                    problem,
                    last + 1,
                    last,
                    time.time(),
                    sum(len(chunk.text) for page in pages for chunk in page.chunks),
                    document_id,
                ),
            )
        return True

    def _add_page(self, document_id: int, title: str, page: PageRead) -> None:
        execute = self._db.execute
        execute("INSERT OR REPLACE INTO page VALUES(?,?,?,?)", (document_id, page.number, page.label, page.problem))
        for chunk in page.chunks:
            execute(
                "INSERT INTO chunk(document_id, page, heading, kind, text, line) VALUES(?,?,?,?,?,?)",
                (document_id, page.number, chunk.heading, chunk.kind, chunk.text, chunk.line),
            )
            chunk_id = self._db.last_insert_rowid()
            execute(
                "INSERT INTO full_text(rowid, title, heading, body) VALUES(?,?,?,?)",
                (chunk_id, *map(searchable, (title, chunk.heading, chunk.text))),
            )
            execute(
                "INSERT INTO vector(chunk_id, vector) SELECT ?, vector FROM spare WHERE digest=?",
                (chunk_id, _digest(title, chunk.heading, chunk.text)),
            )

    def index_words_again(self) -> None:
        """Put passages that an earlier version indexed as they are into the form in which words are searched."""
        if self.fact("words") == _WORDS:
            return
        after = 0
        while True:
            with self.lock, self._db:
                rows: list[Any] = self._db.execute(
                    "SELECT chunk.id, title, heading, text FROM chunk JOIN document ON document.id=document_id"
                    " WHERE chunk.id > ? ORDER BY chunk.id LIMIT ?",
                    (after, _AT_ONCE),
                ).fetchall()
                changed = [row for row in rows if not all(text.isascii() for text in row[1:])]
                self._db.executemany("DELETE FROM full_text WHERE rowid=?", [(row[0],) for row in changed])
                self._db.executemany(
                    "INSERT INTO full_text(rowid, title, heading, body) VALUES(?,?,?,?)",
                    [(row[0], *map(searchable, row[1:])) for row in changed],
                )
            if not rows:
                break
            after = rows[-1][0]
        self.set_fact("words", _WORDS)

    def _clear(self, document_id: int) -> None:
        """Delete a document's passages. Their vectors stay as spare ones."""
        rows: list[Any] = self._db.execute(
            "SELECT title, heading, text, vector FROM chunk JOIN vector ON chunk_id=chunk.id"
            " JOIN document ON document.id=document_id WHERE document_id=?",
            (document_id,),
        ).fetchall()
        self._db.executemany(
            "INSERT OR REPLACE INTO spare VALUES(?,?)",
            [(_digest(title, heading, text), vector) for title, heading, text, vector in rows],
        )
        self._db.execute(
            "DELETE FROM full_text WHERE rowid IN (SELECT id FROM chunk WHERE document_id=?)", (document_id,)
        )
        self._db.execute("DELETE FROM chunk WHERE document_id=?", (document_id,))
        self._db.execute("DELETE FROM page WHERE document_id=?", (document_id,))
        self._db.execute("UPDATE document SET num_chars=0 WHERE id=?", (document_id,))

    def remove(self, paths: Iterable[str]) -> None:
        """Delete documents, each in a separate transaction."""
        for path in paths:
            with self.lock, self._db:
                document_id = self._db.execute("SELECT id FROM document WHERE path=?", (path,)).get
                if document_id is not None:
                    self._clear(document_id)
                    self._db.execute("DELETE FROM document WHERE id=?", (document_id,))

    def set_skipped(self, places: Mapping[str, str]) -> None:
        """Replace the paths that are not read by rule, with their reasons."""
        with self.lock, self._db:
            if dict(self._db.execute("SELECT path, reason FROM skipped")) != places:
                self._db.execute("DELETE FROM skipped")
                self._db.executemany("INSERT INTO skipped VALUES(?,?)", places.items())

    def skipped(self) -> dict[str, str]:
        """Paths that are not read by rule, with their reasons."""
        with self.lock:
            return dict(self._db.execute("SELECT path, reason FROM skipped"))

    def forget_skipped(self, path: str) -> None:
        """A path that was not read no longer exists."""
        with self.lock:
            self._db.execute("DELETE FROM skipped WHERE path=?", (path,))

    def forget_spare(self) -> None:
        """Forget the vectors of removed passages."""
        with self.lock:
            self._db.execute("DELETE FROM spare")

    def _delete_vectors(self) -> None:
        super()._delete_vectors()
        self._db.execute("DELETE FROM spare")

    # ------------------------------------------------------------------ queries

    def indexed_files(self) -> dict[str, tuple[int, int, str]]:
        """Path to (size in bytes, mtime_ns, state) of every document."""
        with self.lock:
            rows = self._db.execute("SELECT path, size_bytes, mtime_ns, state FROM document")
            return {path: (size, mtime, state) for path, size, mtime, state in rows}

    def document(self, key: int | str) -> DocumentRow | None:
        column = "id" if isinstance(key, int) else "path"
        with self.lock:
            row = next(iter(self._db.execute(f"{_DOCUMENT} WHERE {column}=?", (key,))), None)
        return _document(row) if row else None

    def documents(self, after: str = "", limit: int = 100, *, problems: bool = False) -> list[DocumentRow]:
        """Documents sorted by path; if `problems`, what was not read completely or is skipped by rule."""
        only = f" AND {_WITH_PROBLEM} UNION ALL {_AS_DOCUMENT} WHERE path > ?1" if problems else ""
        with self.lock:
            rows = self._db.execute(f"{_DOCUMENT} WHERE path > ?1{only} ORDER BY path LIMIT ?2", (after, limit))
            return [_document(row) for row in rows]

    def pages(self, document_id: int) -> list[tuple[int, str, str]]:
        with self.lock:
            rows = self._db.execute(
                "SELECT number, label, problem FROM page WHERE document_id=? ORDER BY number", (document_id,)
            )
            return list(rows)

    def chunks_of(self, document_id: int, page: int | None = None) -> list[Passage]:
        """The passages of a document, or of one page, in order; together they are its text."""
        only, values = ("", (document_id,)) if page is None else (" AND chunk.page=?", (document_id, page))
        with self.lock:
            rows = self._db.execute(f"{_CHUNK} WHERE chunk.document_id=?{only} ORDER BY chunk.id", values)
            return [_chunk(row) for row in rows]

    def chunks(self, ids: Sequence[int]) -> dict[int, Passage]:
        """Passages by id; deleted ones are omitted."""
        with self.lock:
            marks = ",".join("?" * len(ids))
            rows = self._db.execute(f"{_CHUNK} WHERE chunk.id IN ({marks})", tuple(ids))
            return {row[0]: _chunk(row) for row in rows}

    def first_chunks(self, limit: int) -> list[Passage]:
        """The first passage of each of the first documents, in the order of their paths."""
        with self.lock:
            rows = self._db.execute(
                f"{_CHUNK} WHERE chunk.id IN (SELECT min(id) FROM chunk GROUP BY document_id)"  # noqa: S608 - fixed
                " ORDER BY document.path LIMIT ?",
                (limit,),
            )
            return [_chunk(row) for row in rows]

    def without_vector(self, after: int, limit: int) -> list[tuple[int, str]]:
        """Passages after id `after` without a vector: id and the text to embed, including title and headings."""
        with self.lock:
            rows = self._db.execute(
                "SELECT chunk.id, title, heading, text FROM chunk JOIN document ON document.id=document_id"
                " WHERE chunk.id > ? AND NOT EXISTS (SELECT 1 FROM vector WHERE chunk_id=chunk.id)"
                " ORDER BY chunk.id LIMIT ?",
                (after, limit),
            )
            return [(chunk_id, embedded_text(title, heading, text)) for chunk_id, title, heading, text in rows]

    def counts(self) -> Counts:
        with self.lock:
            documents, failed, pages, chars = self._db.execute(
                "SELECT count(*), coalesce(sum(state='failed'),0), coalesce(sum(num_pages),0),"
                " coalesce(sum(num_chars),0) FROM document"
            ).get
            unread, scanned = self._db.execute(
                "SELECT count(*), coalesce(sum(problem IN (?,?,?)),0) FROM page WHERE problem <> ''",
                (NEEDS_OCR, *OCR_MISSING),
            ).get
            chunks = self._db.execute("SELECT count(*) FROM chunk").get
            embedded = self.num_vectors()
            skipped = self._db.execute("SELECT count(*) FROM skipped").get
        return Counts(
            documents=documents,
            failed=failed,
            pages=pages,
            unread_pages=unread,
            scanned_pages=scanned,
            chunks=chunks,
            embedded=embedded,
            chars=chars,
            skipped=skipped,
        )

    def with_page_problems(self, problems: Sequence[str]) -> set[str]:
        """Paths of the documents with a page that has one of these problems."""
        ask = "SELECT DISTINCT path FROM page JOIN document ON document.id=document_id WHERE page.problem=?"
        with self.lock:
            return {path for problem in problems for (path,) in self._db.execute(ask, (problem,))}

    def size_bytes(self) -> int:
        """Bytes of the index on disk."""
        total = 0
        for suffix in ("", "-wal", "-shm"):
            path = self.path.with_name(self.path.name + suffix)
            total += path.stat().st_size if path.exists() else 0
        return total

    def close(self) -> None:
        """Close the database permanently."""
        with self.lock:
            self._closed = True
            if self._opened is not None:
                self._opened[0].close()
                self._opened = None


def embedded_text(title: str, heading: str, text: str) -> str:
    """The text to embed for a passage. It includes title and headings, which often state the topic."""
    place = " » ".join(part for part in (title, heading) if part)
    return f"{place}\n{text}" if place else text


def _digest(title: str, heading: str, text: str) -> bytes:
    return hashlib.blake2b(f"{title}\0{heading}\0{text}".encode("utf-8", "replace"), digest_size=16).digest()


def _document(row: tuple[object, ...]) -> DocumentRow:
    return msgspec.convert(dict(zip(DocumentRow.__struct_fields__, row, strict=True)), learned(DocumentRow))


def _chunk(row: tuple[object, ...]) -> Passage:
    return msgspec.convert(dict(zip(Passage.__struct_fields__, row, strict=False)), learned(Passage))

"""The index on disk: files, symbols and full text of one project. It is a cache and can be deleted."""

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw

from app.code.errors import IndexUnusable
from app.code.index.walk import FoundFile
from app.code.index.worker import ParsedFile
from engine.core.index_database import VECTOR_TABLES, IndexStore, open_index
from engine.documents.query_terms import Stemmer

# Increase it when the tables or their contents change; an older index is rebuilt.
_VERSION = 3
# The tokenizer of the full text, and of questions.
_TOKENIZER = ("porter", "unicode61", "remove_diacritics", "0")
_SCHEMA = f"""
CREATE TABLE file(id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, size_bytes INTEGER NOT NULL,
  mtime_ns INTEGER NOT NULL, language TEXT NOT NULL, num_lines INTEGER NOT NULL, problem TEXT);
CREATE TABLE symbol(file_id INTEGER NOT NULL REFERENCES file(id) ON DELETE CASCADE, name TEXT NOT NULL,
  kind TEXT NOT NULL, scope TEXT NOT NULL, line INTEGER NOT NULL, end_line INTEGER NOT NULL,
  signature TEXT NOT NULL);
CREATE INDEX symbol_name ON symbol(name COLLATE NOCASE);
CREATE INDEX symbol_file ON symbol(file_id);
CREATE TABLE chunk(id INTEGER PRIMARY KEY AUTOINCREMENT,
  file_id INTEGER NOT NULL REFERENCES file(id) ON DELETE CASCADE, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE INDEX chunk_file ON chunk(file_id);
CREATE VIRTUAL TABLE chunk_text USING fts5(path, names, body, words, content='', contentless_delete=1,
  tokenize="{" ".join(_TOKENIZER)}");
CREATE VIRTUAL TABLE term USING fts5vocab(chunk_text, row);
{VECTOR_TABLES}"""
# An index that was not opened for this long is deleted: its project may be gone.
UNUSED_S = 180 * 86_400
# Column weights for bm25: the column of a word matters more than its frequency.
_WEIGHTS = "4.0, 6.0, 1.0, 0.7"


@dataclass(frozen=True)
class SymbolHit:
    """A definition and its location."""

    path: str
    name: str
    kind: str
    scope: str
    line: int
    end_line: int
    signature: str


@dataclass(frozen=True)
class ChunkHit:
    """Lines of a file that match a query; a larger `score` is better."""

    path: str
    first: int
    last: int
    score: float


def index_path(cache: Path, root: Path) -> Path:
    """Path of a project's index below the cache folder."""
    digest = hashlib.sha256(str(root.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
    return cache / "code" / digest[:24] / "index.db"


def delete_unused(current: Path) -> None:
    """Delete the indexes of projects that were not opened for half a year; opening one builds its index again."""
    limit_s = time.time() - UNUSED_S
    with contextlib.suppress(OSError):
        os.utime(current)
        for index in current.parent.parent.glob(f"*/{current.name}"):
            if index.stat().st_mtime < limit_s:
                shutil.rmtree(index.parent, ignore_errors=True)


class IndexDatabase(IndexStore):
    """Typed access to the tables. One connection; hold `lock` for all calls from several threads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            self._db = open_index(path, _SCHEMA, _VERSION)
            self._stemmer = Stemmer(self._db, _TOKENIZER, form=str)
        except (OSError, apsw.Error) as error:
            raise IndexUnusable(path, str(error)) from error

    @property
    def connection(self) -> apsw.Connection:
        """The connection, for queries of other modules; hold `lock`."""
        return self._db

    def indexed_files(self) -> dict[str, tuple[int, int]]:
        """Map every indexed file's path to (size in bytes, mtime_ns)."""
        return {p: (s, m) for p, s, m in self._db.execute("SELECT path, size_bytes, mtime_ns FROM file")}

    def store(self, files: Iterable[tuple[FoundFile, ParsedFile]]) -> None:
        """Insert or replace files in one transaction."""
        with self._db:
            for file, parsed in files:
                self._delete(file.path)
                self._insert(file, parsed)

    def _insert(self, file: FoundFile, parsed: ParsedFile) -> None:
        execute, executemany = self._db.execute, self._db.executemany
        execute(
            "INSERT INTO file(path, size_bytes, mtime_ns, language, num_lines, problem) VALUES(?,?,?,?,?,?)",
            (file.path, file.size_bytes, file.mtime_ns, parsed.language, parsed.num_lines, parsed.problem),
        )
        file_id = self._db.last_insert_rowid()
        executemany(
            "INSERT INTO symbol VALUES(?,?,?,?,?,?,?)",
            [(file_id, s.name, s.kind, s.scope, s.line, s.end_line, s.signature) for s in parsed.symbols],
        )
        for chunk in parsed.chunks:
            execute("INSERT INTO chunk(file_id, first, last) VALUES(?,?,?)", (file_id, chunk.first, chunk.last))
            execute(
                "INSERT INTO chunk_text(rowid, path, names, body, words) VALUES(?,?,?,?,?)",
                (self._db.last_insert_rowid(), file.path, chunk.names, chunk.text, chunk.words),
            )

    def remove(self, paths: Iterable[str]) -> None:
        """Delete files in one transaction."""
        with self._db:
            for path in paths:
                self._delete(path)

    def _delete(self, path: str) -> None:
        self._db.execute(
            "DELETE FROM chunk_text WHERE rowid IN"
            " (SELECT chunk.id FROM chunk JOIN file ON file.id=file_id WHERE path=?)",
            (path,),
        )
        self._db.execute("DELETE FROM file WHERE path=?", (path,))

    def paths(self, prefix: str = "", limit: int | None = None) -> list[str]:
        """Indexed paths below a folder (`prefix` ends in a slash, or is empty), sorted."""
        rows = self._db.execute(
            "SELECT path FROM file WHERE path >= ? AND path < ? AND problem IS NULL ORDER BY path LIMIT ?",
            (prefix, prefix + "\U0010ffff", -1 if limit is None else limit),
        )
        return [path for (path,) in rows]

    def paths_named(self, name: str) -> list[str]:
        """Paths that equal `name` or end in it after a slash, shortest first."""
        pattern = name.replace("!", "!!").replace("%", "!%").replace("_", "!_")
        rows = self._db.execute(
            "SELECT path FROM file WHERE path=? OR path LIKE ? ESCAPE '!' ORDER BY length(path), path LIMIT 50",
            (name, "%/" + pattern),
        )
        return [path for (path,) in rows]

    def problems(self) -> dict[str, str]:
        """Files that could not be indexed, with the reason."""
        return dict(self._db.execute("SELECT path, problem FROM file WHERE problem IS NOT NULL"))

    def symbols_named(self, name: str, limit: int = 50) -> list[SymbolHit]:
        """Definitions with this name, case ignored but exact case first; `Outer.inner` limits the scope."""
        scope, _, leaf = name.rpartition(".")
        rows = self._db.execute(
            "SELECT path, name, kind, scope, line, end_line, signature FROM symbol JOIN file ON file.id=file_id"
            " WHERE name=? COLLATE NOCASE AND (?='' OR scope=? OR scope LIKE ?)"
            " ORDER BY name<>?, length(scope), length(path), path, line LIMIT ?",
            (leaf, scope, scope, f"%.{scope}", leaf, limit),
        )
        return [SymbolHit(*row) for row in rows]

    def symbols_in(self, path: str) -> list[SymbolHit]:
        """A file's outline, in order."""
        rows = self._db.execute(
            "SELECT path, name, kind, scope, line, end_line, signature FROM symbol JOIN file ON file.id=file_id"
            " WHERE path=? ORDER BY line",
            (path,),
        )
        return [SymbolHit(*row) for row in rows]

    def num_chunks(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM chunk").get)

    def match_counts(self, words: Sequence[str]) -> dict[str, int]:
        """For each word, the number of chunks that contain its rarest token, stemmed like the text."""
        return {word: min(self.chunk_counts(self._stemmer.stems(word)).values(), default=0) for word in words}

    def search(self, match: str, limit: int) -> Iterator[ChunkHit]:
        """Yield the best chunks for an FTS5 expression."""
        rows = self._db.execute(
            f"SELECT path, first, last, score FROM (SELECT rowid AS id, bm25(chunk_text, {_WEIGHTS}) AS score"  # noqa: S608  # fixed weights
            " FROM chunk_text WHERE chunk_text MATCH ? ORDER BY score LIMIT ?) JOIN chunk USING(id)"
            " JOIN file ON file.id=file_id ORDER BY score",
            (match, limit),
        )
        for path, first, last, score in rows:
            yield ChunkHit(path, first, last, -score)

    def close(self) -> None:
        self._db.close()

"""Semantic search, if an embedding model is loaded: vectors of chunks, in addition to full-text search."""

import json
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from app.client import ApiError
from app.code.index.database import ChunkHit
from app.code.index.project import ProjectIndex
from devices.errors import TesseraError

# Returns one vector per text; raises ApiError if the server cannot embed.
Embed = Callable[[list[str]], Sequence[Sequence[float]]]

_BATCH = 32
# Models that embed code well accept about this much; `_one` shortens texts for a model with a smaller context.
_CHUNK_CHARS = 2000
# If a text of this length is still rejected, its length is not the reason.
_LEAST_CHARS = 100
# Status codes of an error that may concern a single text. 500: llama-server, for a text larger than its batch.
_ABOUT_TEXTS = frozenset({400, 413, 422, 500})
# If this many first texts of a batch are rejected at any length, the cause is not the texts.
_ENOUGH = 3
# Search compares all vectors: with 384 dimensions, this many take about 20 ms and 75 MB.
MAX_VECTORS = 50_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS chunk_vector(chunk_id INTEGER PRIMARY KEY REFERENCES chunk(id) ON DELETE CASCADE,
  model TEXT NOT NULL, vector BLOB NOT NULL)
"""


class VectorIndex:
    """Vectors of one model for a project's chunks. Vectors of another model are replaced when they are found."""

    def __init__(self, index: ProjectIndex, model: str, embed: Embed) -> None:
        self._index = index
        self._model = model
        self._embed = embed
        self._matrix: npt.NDArray[np.float32] | None = None
        self._ids: list[int] = []
        self._max_chars = _CHUNK_CHARS
        self._refused: set[int] = set()
        # The reason why the last update or search used no vectors; empty if it used them.
        self.problem = ""
        with index.lock:
            index.database.connection.execute(_SCHEMA)

    def update(self, limit_s: float) -> int:
        """Embed chunks without a vector, for at most `limit_s`; return how many are still missing.

        If the server cannot embed, `problem` is the reason; prompts are then answered without vectors.
        """
        begun = time.monotonic()
        self.problem = ""
        while time.monotonic() - begun <= limit_s:
            with self._index.lock:
                missing = self._missing(_BATCH)
                texts = [(chunk_id, self._text(path, first, last)) for chunk_id, path, first, last in missing]
            if not missing:
                break
            try:
                self._store([chunk_id for chunk_id, _ in texts], self._several([text for _, text in texts]))
            except (ApiError, ValueError) as error:
                self.problem = str(error)
                break
        return self._num_missing()

    def search(self, question: str, limit: int = 24) -> list[ChunkHit]:
        """The semantically nearest chunks, best first; empty if the server cannot embed (see `problem`)."""
        with self._index.lock:
            self._load()
        if self._matrix is None or not self._ids:
            return []
        try:
            vector = self._one(question)
        except (ApiError, ValueError) as error:
            self.problem = str(error)
            return []
        if vector.shape[0] != self._matrix.shape[1]:
            return []
        scores = self._matrix @ vector
        best = np.argsort(-scores)[:limit]
        hits = []
        with self._index.lock:
            for position in best:
                rows = self._index.database.connection.execute(
                    "SELECT path, first, last FROM chunk JOIN file ON file.id=file_id WHERE chunk.id=?",
                    (self._ids[int(position)],),
                )
                hits += [ChunkHit(path, first, last, float(scores[position])) for path, first, last in rows]
        return hits

    def _several(self, texts: list[str]) -> list[npt.NDArray[np.float32] | None]:
        """A unit vector per text; None for a text that the model rejects at any length."""
        try:
            return list(_unit(self._embed([text[: self._max_chars] for text in texts]), len(texts)))
        except ApiError as error:
            if error.status not in _ABOUT_TEXTS:
                raise
        vectors: list[npt.NDArray[np.float32] | None] = []
        for text in texts:
            try:
                vectors.append(self._one(text))
            except ApiError as error:
                vectors.append(None)
                if error.status not in _ABOUT_TEXTS or vectors == [None] * _ENOUGH:
                    raise
        return vectors

    def _one(self, text: str) -> npt.NDArray[np.float32]:
        """A unit vector for one text, which is shortened until the model accepts it.

        Only the model knows the token count of a text, and `/v1/embeddings` rejects a text that is too long.
        """
        text, cut = text[: self._max_chars], False
        while True:
            try:
                vector: npt.NDArray[np.float32] = _unit(self._embed([text]), 1)[0]
            except ApiError as error:
                if error.status not in _ABOUT_TEXTS or len(text) <= _LEAST_CHARS:
                    raise
                text, cut = text[: _shorter(len(text), error)], True
                continue
            if cut:  # the next batch succeeds immediately; one dense text does not shorten all others
                self._max_chars = max(len(text), _CHUNK_CHARS // 2)
            return vector

    def _store(self, chunk_ids: list[int], vectors: list[npt.NDArray[np.float32] | None]) -> None:
        pairs = list(zip(chunk_ids, vectors, strict=True))
        self._refused |= {chunk_id for chunk_id, vector in pairs if vector is None}
        rows = [
            (chunk_id, self._model, vector.astype("<f2").tobytes())
            for chunk_id, vector in pairs
            if vector is not None
        ]
        with self._index.lock:
            self._index.database.connection.executemany(
                "INSERT OR REPLACE INTO chunk_vector"
                " SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM chunk WHERE id=?1)",
                rows,
            )
        self._matrix = None

    def _missing(self, count: int) -> list[tuple[int, str, int, int]]:
        rows = self._index.database.connection.execute(
            "SELECT chunk.id, path, first, last FROM chunk JOIN file ON file.id=file_id"
            " LEFT JOIN chunk_vector ON chunk_id=chunk.id AND model=? WHERE chunk_id IS NULL AND chunk.id IN"
            " (SELECT id FROM chunk ORDER BY id LIMIT ?) AND chunk.id NOT IN (SELECT value FROM json_each(?))"
            " LIMIT ?",
            (self._model, MAX_VECTORS, json.dumps(sorted(self._refused)), count),
        )
        return list(rows)

    def _num_missing(self) -> int:
        with self._index.lock:
            total, have = self._index.database.connection.execute(
                "SELECT (SELECT count(*) FROM chunk), (SELECT count(*) FROM chunk_vector WHERE model=?)",
                (self._model,),
            ).get
        return max(min(int(total), MAX_VECTORS) - int(have), 0)

    def _load(self) -> None:
        """Reload the matrix after a change; vectors of deleted files are deleted with them."""
        connection = self._index.database.connection
        have = connection.execute("SELECT count(*) FROM chunk_vector WHERE model=?", (self._model,)).get
        if self._matrix is not None and have == len(self._ids):
            return
        rows = list(connection.execute("SELECT chunk_id, vector FROM chunk_vector WHERE model=?", (self._model,)))
        self._ids = [chunk_id for chunk_id, _ in rows]
        parts = [np.frombuffer(blob, dtype="<f2") for _, blob in rows]
        same = bool(parts) and all(len(part) == len(parts[0]) for part in parts)
        self._matrix = np.stack(parts).astype(np.float32) if same else None

    def _text(self, path: str, first: int, last: int) -> str:
        try:
            lines = self._index.workspace.read(path).text.split("\n")[first - 1 : last]
        except (TesseraError, OSError):
            return path
        text = f"{path}\n" + "\n".join(lines)
        return text.encode("utf-8", "replace").decode()[:_CHUNK_CHARS]


def _unit(vectors: Sequence[Sequence[float]], count: int) -> npt.NDArray[np.float32]:
    """Normalize to length 1: float32 of (count, width). Raises: ValueError: wrong count, or different widths."""
    rows = np.asarray(vectors, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != count:  # noqa: PLR2004 - rows and columns
        raise ValueError(f"the server gave no {count} vectors of one width")
    lengths: npt.NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, np.maximum(lengths, 1e-12), dtype=np.float32)


def _shorter(chars: int, error: ApiError) -> int:
    """Characters to try next: from the token counts in the error, with a reserve of 10 %; else half."""
    tokens, room = error.facts.get("prompt_tokens"), error.facts.get("context_tokens")
    by_tokens = int(0.9 * chars * room / tokens) if tokens and room and room < tokens else chars // 2
    return max(min(by_tokens, chars - 1), _LEAST_CHARS // 2)

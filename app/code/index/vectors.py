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
from engine.documents.vectors import Vectors, packed

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
# Search compares all vectors: with 384 dimensions, this many take 20 MB.
MAX_VECTORS = 50_000


class VectorIndex:
    """Vectors of one model for a project's chunks. Those of another model are deleted."""

    def __init__(self, index: ProjectIndex, model: str, embed: Embed) -> None:
        self._index = index
        self._model = model
        self._embed = embed
        self._vectors = Vectors(index.database)
        self._max_chars = _CHUNK_CHARS
        self._refused: set[int] = set()
        # The reason why the last update or search used no vectors; empty if it used them.
        self.problem = ""
        index.database.use_model(model)

    def update(self, limit_s: float) -> int:
        """Embed chunks without a vector, for at most `limit_s`; return how many are still missing.

        If the server cannot embed, `problem` is the reason; prompts are then answered without vectors.
        """
        started_at = time.monotonic()
        self.problem = ""
        while time.monotonic() - started_at <= limit_s:
            with self._index.lock:
                missing = self._missing(_BATCH)
                texts = [(chunk_id, self._text(path, first, last)) for chunk_id, path, first, last in missing]
            if not missing:
                break
            try:
                vectors = self._several([text for _, text in texts])
            except (ApiError, ValueError) as error:
                self.problem = str(error)
                break
            pairs = list(zip([chunk_id for chunk_id, _ in texts], vectors, strict=True))
            self._refused |= {chunk_id for chunk_id, vector in pairs if vector is None}
            rows = [(chunk_id, packed(vector)) for chunk_id, vector in pairs if vector is not None]
            if not self._index.database.add_vectors(self._model, rows):
                break  # another program uses this index with another model
        return self._num_missing()

    def search(self, question: str, limit: int = 24) -> list[ChunkHit]:
        """The semantically nearest chunks, best first; empty if the server cannot embed (see `problem`)."""
        if not self._index.database.num_vectors():
            return []
        try:
            vector = self._one(question)
        except (ApiError, ValueError) as error:
            self.problem = str(error)
            return []
        near = dict(self._vectors.nearest(vector, limit))
        with self._index.lock:
            rows = self._index.database.connection.execute(
                "SELECT chunk.id, file.path, first, last FROM json_each(?) JOIN chunk ON chunk.id=json_each.value"
                " JOIN file ON file.id=file_id ORDER BY json_each.key",
                (json.dumps(list(near)),),
            )
            return [ChunkHit(path, first, last, near[chunk_id]) for chunk_id, path, first, last in rows]

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

    def _missing(self, count: int) -> list[tuple[int, str, int, int]]:
        rows = self._index.database.connection.execute(
            "SELECT chunk.id, path, first, last FROM chunk JOIN file ON file.id=file_id"
            " LEFT JOIN vector ON chunk_id=chunk.id WHERE chunk_id IS NULL AND chunk.id IN"
            " (SELECT id FROM chunk ORDER BY id LIMIT ?) AND chunk.id NOT IN (SELECT value FROM json_each(?))"
            " LIMIT ?",
            (MAX_VECTORS, json.dumps(sorted(self._refused)), count),
        )
        return list(rows)

    def _num_missing(self) -> int:
        with self._index.lock:
            total = int(self._index.database.connection.execute("SELECT count(*) FROM chunk").get)
            return max(min(total, MAX_VECTORS) - self._index.database.num_vectors(), 0)

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

"""Search by meaning, where an embedding model is loaded: vectors of chunks beside the full text."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from app.code.errors import CodeError
from app.code.index.database import ChunkHit
from app.code.index.project import ProjectIndex

# Gives one vector for each text; raises when the server cannot.
Embed = Callable[[list[str]], Sequence[Sequence[float]]]

_BATCH = 32
# An embedding model reads about this much of a chunk; the rest would be cut by the model itself.
_CHUNK_CHARS = 2000
# Vectors are compared one by one: at 384 numbers this many take about 20 ms and 75 MB.
MAX_VECTORS = 50_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS chunk_vector(chunk_id INTEGER PRIMARY KEY REFERENCES chunk(id) ON DELETE CASCADE,
  model TEXT NOT NULL, vector BLOB NOT NULL)
"""


class VectorIndex:
    """Vectors of one model over a project's chunks. Those of another model are replaced as they are met."""

    def __init__(self, index: ProjectIndex, model: str, embed: Embed) -> None:
        self._index = index
        self._model = model
        self._embed = embed
        self._matrix: npt.NDArray[np.float32] | None = None
        self._ids: list[int] = []
        with index.lock:
            index.database.connection.execute(_SCHEMA)

    def update(self, limit_s: float) -> int:
        """Embed chunks that have no vector yet, for at most `limit_s`; returns how many are still without."""
        begun = time.monotonic()
        while True:
            with self._index.lock:
                missing = self._missing(_BATCH)
                texts = [(chunk_id, self._text(path, first, last)) for chunk_id, path, first, last in missing]
            if not missing or time.monotonic() - begun > limit_s:
                break
            vectors = np.asarray(self._embed([text for _, text in texts]), dtype=np.float32)
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            rows = [
                (chunk_id, self._model, vector.astype("<f2").tobytes())
                for (chunk_id, _), vector in zip(texts, vectors, strict=True)
            ]
            with self._index.lock:
                self._index.database.connection.executemany(
                    "INSERT OR REPLACE INTO chunk_vector"
                    " SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM chunk WHERE id=?1)",
                    rows,
                )
            self._matrix = None
        return self._num_missing()

    def search(self, question: str, limit: int = 24) -> list[ChunkHit]:
        """The chunks nearest in meaning, best first."""
        with self._index.lock:
            self._load()
        if self._matrix is None or not self._ids:
            return []
        (vector,) = np.asarray(self._embed([question]), dtype=np.float32)
        if vector.shape[0] != self._matrix.shape[1]:
            return []
        scores = self._matrix @ (vector / max(float(np.linalg.norm(vector)), 1e-12))
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

    def _missing(self, count: int) -> list[tuple[int, str, int, int]]:
        rows = self._index.database.connection.execute(
            "SELECT chunk.id, path, first, last FROM chunk JOIN file ON file.id=file_id"
            " LEFT JOIN chunk_vector ON chunk_id=chunk.id AND model=? WHERE chunk_id IS NULL AND chunk.id IN"
            " (SELECT id FROM chunk ORDER BY id LIMIT ?) LIMIT ?",
            (self._model, MAX_VECTORS, count),
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
        """Read the matrix again after a change; files that went take their vectors with them."""
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
        except (CodeError, OSError):
            return path
        text = f"{path}\n" + "\n".join(lines)
        return text.encode("utf-8", "replace").decode()[:_CHUNK_CHARS]


def fused(ranked: Sequence[Sequence[ChunkHit]]) -> list[ChunkHit]:
    """Several rankings as one, by reciprocal ranks.

    Source: Cormack, Clarke and Büttcher, SIGIR 2009 (k = 60).
    """
    scores: dict[tuple[str, int, int], float] = {}
    for hits in ranked:
        for rank, hit in enumerate(hits):
            key = (hit.path, hit.first, hit.last)
            scores[key] = scores.get(key, 0.0) + 1.0 / (60 + rank)
    return [ChunkHit(*key, score) for key, score in sorted(scores.items(), key=lambda item: -item[1])]

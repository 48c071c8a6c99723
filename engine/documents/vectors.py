"""Stores the vectors of chunks with one byte per dimension, on disk and in memory, and searches all of them."""

import threading
from typing import Any, Final

import numpy as np

from engine.core.index_database import IndexStore

# Rows per batch: their float32 copy takes about 25 MB at 384 dimensions.
_BLOCK: Final = 16_384
# Deleted passages leave their rows in memory; from this share on, all rows are loaded again.
_STALE: Final = 0.2
_SCALE: Final = np.dtype("<f4")


def packed(vector: Any) -> bytes:
    """Serialize a vector of any length, scaled to unit length: a float32 scale and a signed byte per dimension."""
    unit = np.asarray(vector, np.float32)
    unit = unit / (np.linalg.norm(unit) or 1.0)
    scale = float(np.abs(unit).max()) / 127 or 1.0
    numbers: bytes = np.rint(unit / scale).astype(np.int8).tobytes()
    return np.array([scale], _SCALE).tobytes() + numbers


def above(cosine: Any, floor: float) -> Any:
    """Rescale cosines linearly so that `floor`, the cosine of unrelated texts, becomes 0; 1 stays 1."""
    return (cosine - floor) / (1 - floor)


class Vectors:
    """The vectors of an index in memory, loaded incrementally. Safe from any thread."""

    def __init__(self, store: IndexStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._drop()

    def _drop(self) -> None:
        self._last = 0
        self._made_by = ("", "")
        self._count = 0
        self._ids = np.empty(0, np.int64)
        self._scales = np.empty(0, np.float32)
        self._rows: Any = np.empty((0, 0), np.int8)

    def release(self) -> None:
        """Free the memory; the next query loads the vectors again."""
        with self._lock:
            self._drop()

    def nearest(self, question: Any, limit: int, floor: float = 0.0) -> list[tuple[int, float]]:
        """Ids of the chunks nearest to a unit vector, with their cosines rescaled from `floor`, best first."""
        with self._lock:
            self._load()
            if not self._count or self._rows.shape[1] != len(question):
                return []
            query = np.asarray(question, np.float32)
            cosines = np.empty(self._count, np.float32)
            for first in range(0, self._count, _BLOCK):
                rows = self._rows[first : min(first + _BLOCK, self._count)].astype(np.float32)
                cosines[first : first + len(rows)] = rows @ query
            cosines *= self._scales[: self._count]
            most = min(limit, self._count)
            best = np.argpartition(-cosines, most - 1)[:most]
            best = best[np.argsort(-cosines[best])]
            return [(int(self._ids[i]), float(above(cosines[i], floor))) for i in best]

    def _load(self) -> None:
        with self._store.lock:
            db = self._store.connection
            made_by = self._store.fact("embedding_model"), self._store.fact("passage_prefix")
            there = self._store.num_vectors()
            if made_by != self._made_by or self._count - there > _STALE * max(there, 1000):
                self._drop()
                self._made_by = made_by
            rows = list(
                db.execute("SELECT id, chunk_id, vector FROM vector WHERE id > ? ORDER BY id", (self._last,))
            )
        if not rows:
            return
        self._last = rows[-1][0]
        width = len(rows[-1][2]) - _SCALE.itemsize
        rows = [row for row in rows if len(row[2]) == width + _SCALE.itemsize]
        needed = self._count + len(rows)
        if needed > len(self._ids):
            room = max(needed, int(1.3 * len(self._ids)))
            self._ids = np.resize(self._ids, room)
            self._scales = np.resize(self._scales, room)
            grown = np.empty((room, width), np.int8)
            grown[: self._count] = self._rows[: self._count] if self._count else grown[:0]
            self._rows = grown
        blobs = np.frombuffer(b"".join(row[2] for row in rows), np.uint8).reshape(len(rows), -1)
        self._ids[self._count : needed] = [row[1] for row in rows]
        self._scales[self._count : needed] = np.ascontiguousarray(blobs[:, :4]).view(_SCALE)[:, 0]
        self._rows[self._count : needed] = blobs[:, 4:].view(np.int8)
        self._count = needed

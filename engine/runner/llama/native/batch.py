"""A reusable llama_batch with numpy views as arrays: adding a row takes three stores, not three struct accesses."""

import ctypes
from typing import Any, Final

import numpy as np

from engine.runner.llama.native.model import LoadedModel

# Return values of llama_decode, see llama.h.
NO_ROOM: Final = 1
ABORTED: Final = 2
REFUSED: Final = -1


class EngineBroken(Exception):
    """llama.cpp reported a state that cannot be repaired; the process must be replaced."""


class Batch:
    """Rows of (token, position, sequence, needs logits) for one decode, at most `capacity` of them."""

    def __init__(self, loaded: LoadedModel) -> None:
        api = loaded.api
        self.capacity = loaded.n_batch
        self.max_outputs = loaded.max_outputs
        self._tokens = np.zeros(self.capacity, np.int32)
        self._positions = np.zeros(self.capacity, np.int32)
        self._num_seq = np.ones(self.capacity, np.int32)
        self._seq = np.zeros(self.capacity, np.int32)
        self._seq_pointers = self._seq.ctypes.data + 4 * np.arange(self.capacity, dtype=np.uintp)
        self._logits = np.zeros(self.capacity, np.int8)
        native = api.llama_batch()
        native.token = self._tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        native.embd = None
        native.pos = self._positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        native.n_seq_id = self._num_seq.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        native.seq_id = self._seq_pointers.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
        native.logits = self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._native = native
        self._decode = api.llama_decode
        self._synchronize = api.llama_synchronize
        self._loaded = loaded
        self.size = 0
        self.outputs = 0

    def clear(self) -> None:
        """Start an empty batch."""
        self.size = 0
        self.outputs = 0

    @property
    def room(self) -> int:
        """Number of rows that still fit."""
        return self.capacity - self.size

    def add(self, token: int, position: int, seq_id: int) -> int:
        """Add one generated token that needs logits; return its output row."""
        i = self.size
        self._tokens[i] = token
        self._positions[i] = position
        self._seq[i] = seq_id
        self._logits[i] = 1
        self.size = i + 1
        self.outputs += 1
        return self.outputs - 1

    def add_prompt(self, tokens: list[int], position: int, seq_id: int, *, last: bool) -> int:
        """Add a prompt chunk; return the output row of its final row if `last`, else -1."""
        i, n = self.size, len(tokens)
        self._tokens[i : i + n] = tokens
        self._positions[i : i + n] = np.arange(position, position + n, dtype=np.int32)
        self._seq[i : i + n] = seq_id
        self._logits[i : i + n] = 0
        self.size = i + n
        if not last:
            return -1
        self._logits[i + n - 1] = 1
        self.outputs += 1
        return self.outputs - 1

    def add_embedded(self, tokens: list[int], position: int, seq_id: int) -> None:
        """Add tokens that are all outputs, as pooled embeddings need."""
        i, n = self.size, len(tokens)
        self.add_prompt(tokens, position, seq_id, last=False)
        self._logits[i : i + n] = 1
        self.outputs += n

    def runs(self) -> list[tuple[int, list[int]]]:
        """Return runs of rows of one sequence: its id and their tokens."""
        if self.size == 1:
            return [(int(self._seq[0]), [int(self._tokens[0])])]
        groups: list[tuple[int, list[int]]] = []
        for seq_id, token in zip(self._seq[: self.size].tolist(), self._tokens[: self.size].tolist(), strict=True):
            if groups and groups[-1][0] == seq_id:
                groups[-1][1].append(token)
            else:
                groups.append((seq_id, [token]))
        return groups

    def spans(self) -> dict[int, tuple[int, int, int]]:
        """Return sequence → first position, first row, and number of its consecutive rows."""
        spans_by_sequence: dict[int, tuple[int, int, int]] = {}
        row = 0
        for seq_id, tokens in self.runs():
            spans_by_sequence[seq_id] = (int(self._positions[row]), row, len(tokens))
            row += len(tokens)
        return spans_by_sequence

    def decode(self) -> int:
        """Run the batch to its end. 0: done; 1: no space in the cache; 2: aborted; below 0: see llama.h.

        Sizes for which llama.cpp would abort the process are checked here.
        Raises: EngineBroken: the model's file can no longer be read.
        """
        if not 0 < self.size <= self.capacity or self.outputs > self.max_outputs:
            raise ValueError(f"batch of {self.size} rows, {self.outputs} outputs")
        self._native.n_tokens = self.size
        context = self._loaded.context
        code = int(self._decode(context, self._native))
        self._synchronize(context)
        if problem := self._loaded.problem():
            raise EngineBroken(problem)
        return code


class Logits:
    """Zero-copy rows of the last decode's logits: writable float32 views of (n_vocab,)."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._get = loaded.api.llama_get_logits
        self._loaded = loaded
        self._n_vocab = loaded.n_vocab
        self._address = 0
        self._rows: Any = None

    def rows(self, count: int) -> Any:
        """Return the first `count` output rows, shape (count, n_vocab), in the order of their addition."""
        pointer = self._get(self._loaded.context)
        if not pointer:
            raise ValueError("the last decode produced no logits")
        address = ctypes.addressof(pointer.contents)
        if address != self._address or len(self._rows) < count:
            array = (ctypes.c_float * (count * self._n_vocab)).from_address(address)
            self._rows = np.ctypeslib.as_array(array).reshape(count, self._n_vocab)
            self._address = address
        return self._rows

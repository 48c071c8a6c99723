"""Finds the rows of a checkpoint that become given rows of the GGUF model, from headers alone."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quantize.convert.checkpoint import Checkpoint
from quantize.convert.families import model_recipe
from quantize.convert.small_floats import FLOAT_DTYPES, Packed
from quantize.convert.tensor_map import Array, OutTensor
from quantize.errors import UnsupportedModel
from quantize.files.safetensors_file import DTYPE_BITS, SafetensorsFile


class StoredRow(NamedTuple):
    """Position of a row: the number of the file, the offset in it, and the length."""

    part: int
    offset: int
    nbytes: int


class CheckpointRows:
    """The rows of a folder whose headers were read; `folder` holds its config.json and nothing else.

    Raises: UnsupportedModel: no converter here supports it, or its weights are stored in few bits. BadFile.
    """

    def __init__(self, folder: Path, files: Sequence[SafetensorsFile]) -> None:
        self._numbers = _RowNumbers(folder, files)
        self._tensors = {tensor.name: tensor for tensor in model_recipe(self._numbers).tensors}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor of the GGUF model."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def find(self, name: str, rows: Sequence[int]) -> tuple[str, list[StoredRow]]:
        """The type of a tensor's values, and the positions of these rows, in ascending order."""
        stored = [self._numbers.stored(number) for number in _picked(self._tensors[name], rows)]
        return stored[0][0], [row for _, row in stored]


def _picked(tensor: OutTensor, rows: Sequence[int]) -> Iterator[int]:
    """The numbers of source rows that become these rows of a tensor."""
    numbers = iter(rows)
    row, first = next(numbers, None), 0
    for chunk in tensor.chunks():
        while row is not None and row < first + len(chunk):
            yield int(chunk[row - first, 0])
            row = next(numbers, None)
        if row is None:
            return
        first += len(chunk)


class _RowNumbers(Checkpoint):
    """A checkpoint whose rows hold their own numbers: what the converter does to rows, it does to numbers."""

    def __init__(self, folder: Path, files: Sequence[SafetensorsFile]) -> None:
        self.folder = folder
        self.config = self.json_file("config.json")
        self._where = {tensor.name: (file, tensor) for file in files for tensor in file.tensors}
        if any(len(info.shape) > 1 and info.dtype not in FLOAT_DTYPES for _, info in self._where.values()):
            raise UnsupportedModel(str(folder), "its weights are stored in few bits")
        self._parts = {file.name: number for number, file in enumerate(files)}
        self._names, self._starts, total = list(self._where), [], 0
        for name in self._names:
            self._starts.append(total)
            total += self._rows_of(name)

    def stored(self, number: int) -> tuple[str, StoredRow]:
        """Type and place of the row with this number."""
        index = bisect_right(self._starts, number) - 1
        file, info = self._where[self._names[index]]
        size = info.shape[-1] * DTYPE_BITS[info.dtype] // 8
        offset = info.offset + (number - self._starts[index]) * size
        return info.dtype, StoredRow(self._parts[file.name], offset, size)

    @property
    def _packed(self) -> tuple[dict[str, Packed], frozenset[str]]:
        return {}, frozenset()

    def rows(self, name: str, start: int, stop: int) -> Array:
        """The numbers of rows in place of their values, shape (rows, 1)."""
        first = self._starts[self._names.index(name)]
        return np.arange(first + start, first + stop, dtype=np.int64)[:, None]

    def json_file(self, name: str, within: str = "") -> dict[str, Any]:
        """The configuration; the tokenizer, which only counts tokens here, stays unread."""
        unread: Mapping[str, Any] = {"tokenizer.json": {"model": {"vocab": range(1 << 31)}}}
        return dict(unread[name]) if name in unread else super().json_file(name, within)

    def _rows_of(self, name: str) -> int:
        info = self._where[name][1]
        return info.num_values // max(1, info.shape[-1]) if info.shape else 1

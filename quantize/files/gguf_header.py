"""Data types of a checked GGUF header."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec

from quantize.errors import BadFile
from quantize.files.byte_source import ByteSource, mapped_bytes
from quantize.ggml_types import GgmlType

if TYPE_CHECKING:
    import numpy as np


class Limits(msgspec.Struct, frozen=True):
    """Limits for a header. Real files: about 60 keys, 3,000 tensors, 600,000 strings, 20 MB.

    Measured: a header that reaches every limit takes under 1 s and 100 MB (log-archive.md, library).
    """

    keys: int = 8192
    tensors: int = 40_000
    strings: int = 1_500_000
    text_bytes: int = 8 * 1024 * 1024
    small_array: int = 1024
    fetched_bytes: int = 128 * 1024 * 1024


LIMITS = Limits()


class ValueType(IntEnum):
    """Type ids of metadata values. Source: gguf.h, enum gguf_type."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALARS: dict[int, struct.Struct] = {
    ValueType.UINT8: struct.Struct("<B"),
    ValueType.INT8: struct.Struct("<b"),
    ValueType.UINT16: struct.Struct("<H"),
    ValueType.INT16: struct.Struct("<h"),
    ValueType.UINT32: struct.Struct("<I"),
    ValueType.INT32: struct.Struct("<i"),
    ValueType.FLOAT32: struct.Struct("<f"),
    ValueType.BOOL: struct.Struct("<?"),
    ValueType.UINT64: struct.Struct("<Q"),
    ValueType.INT64: struct.Struct("<q"),
    ValueType.FLOAT64: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True)
class LazyArray:
    """An array that stays in the file: `count` elements in `nbytes` bytes from absolute `offset`."""

    element_type: ValueType
    count: int
    offset: int
    nbytes: int
    source: ByteSource = field(repr=False, compare=False)

    def __len__(self) -> int:
        return self.count

    def strings(self) -> list[bytes]:
        """Decode an array of strings, as raw bytes (vocabularies are not always UTF-8).

        Raises: BadFile: other elements, or the file changed. Unreadable.
        """
        if self.element_type is not ValueType.STRING:
            raise BadFile(self.source.name, f"expected strings, found {self.element_type.name}", self.offset)
        raw = self.source.read_at(self.offset, self.nbytes)
        result = []
        index = 0
        try:
            for _ in range(self.count):
                (length,) = struct.unpack_from("<Q", raw, index)
                result.append(raw[index + 8 : index + 8 + length])
                index += 8 + length
        except (struct.error, OverflowError) as error:
            raise BadFile(self.source.name, "the file changed while it was read", self.offset) from error
        if index != len(raw):
            raise BadFile(self.source.name, "the file changed while it was read", self.offset)
        return result

    def numbers(self) -> "np.ndarray[Any, Any]":
        """The array as numpy, shape (count,). Raises: BadFile: it holds strings, or the file changed."""
        import numpy as np

        if self.element_type is ValueType.STRING:
            raise BadFile(self.source.name, "expected numbers, found STRING", self.offset)
        raw = self.source.read_at(self.offset, self.nbytes)
        if len(raw) != self.nbytes:
            raise BadFile(self.source.name, "the file changed while it was read", self.offset)
        return np.frombuffer(raw, dtype=np.dtype(SCALARS[self.element_type].format))


Value = bool | int | float | str | tuple[bool | int | float | str, ...] | LazyArray


class Entry(msgspec.Struct, frozen=True):
    """Position and type of one metadata value; `element_type` is None unless it is an array."""

    value_type: ValueType
    element_type: ValueType | None
    count: int
    offset: int
    nbytes: int


class TensorInfo(msgspec.Struct, frozen=True):
    """One tensor: `shape` as GGUF stores it (row length first), `offset` absolute in the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GgmlType
    offset: int
    nbytes: int

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A checked header. Tensor data starts at `data_offset`; the last tensor's data ends at `end`."""

    name: str
    file_bytes: int
    version: int
    alignment: int
    metadata: Mapping[str, Value] = field(repr=False)
    entries: Mapping[str, Entry] = field(repr=False)
    tensors: tuple[TensorInfo, ...] = field(repr=False)
    data_offset: int
    end: int

    @property
    def architecture(self) -> str:
        """`general.architecture`, or an empty string."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else ""

    def arch_value(self, key: str, default: Value | None = None) -> Value | None:
        """The value of `<architecture>.<key>`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def arch_int(self, key: str) -> int | None:
        """`<architecture>.<key>` as an integer, else None; for an array (one value per layer) the largest."""
        value = self.arch_value(key)
        if isinstance(value, tuple):
            numbers = [v for v in value if isinstance(v, int) and not isinstance(v, bool)]
            return max(numbers, default=None)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def tensor_bytes(self, tensor: TensorInfo) -> "np.ndarray[Any, Any]":
        """The tensor's data, see `mapped_bytes`."""
        return mapped_bytes(self.name, tensor.offset, tensor.nbytes)

"""Writes GGUF version 3: first a header, whose size is known before any tensor data exists, then the data."""

import errno
import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from quantize.errors import NO_SPACE, DiskFull, NotWritable
from quantize.files.byte_source import FileSource
from quantize.files.gguf_file import GgufFile, ValueType
from quantize.ggml_types import GgmlType, row_bytes

ALIGNMENT = 32
_CODES = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
# Keys that describe the source file, not the model.
_DROPPED_KEYS = frozenset({"split.no", "split.count", "split.tensors.count", "general.alignment"})

Scalar = bool | int | float | str | bytes


class MetaValue(msgspec.Struct, frozen=True):
    """One encoded metadata value: its type id (with element type and count for arrays) and its bytes."""

    type_id: ValueType
    raw: bytes


class TensorSlot(msgspec.Struct, frozen=True):
    """A tensor to write: ggml shape (row length first) and type, which determine its size."""

    name: str
    shape: tuple[int, ...]
    qtype: GgmlType

    @property
    def num_bytes(self) -> int:
        """Bytes of data, without alignment."""
        rows = 1
        for extent in self.shape[1:]:
            rows *= extent
        return rows * row_bytes(self.shape[0], self.qtype)


def scalar(value: Scalar, type_id: ValueType | None = None) -> MetaValue:
    """Encode one value. Without `type_id`, integers become UINT32 and floats FLOAT32."""
    if isinstance(value, str | bytes):
        return MetaValue(ValueType.STRING, _string(value))
    if type_id is None:
        kinds = {bool: ValueType.BOOL, int: ValueType.UINT32}
        type_id = kinds.get(type(value), ValueType.FLOAT32)
    return MetaValue(type_id, struct.pack("<" + _CODES[type_id], value))


def array(values: Sequence[Scalar] | np.ndarray[Any, Any], element: ValueType) -> MetaValue:
    """Encode an array of one element type."""
    head = struct.pack("<IQ", element, len(values))
    if element is ValueType.STRING:
        body = b"".join(_string(v) for v in values)
    else:
        body = np.asarray(values).astype(np.dtype("<" + _CODES[element])).tobytes()
    return MetaValue(ValueType.ARRAY, head + body)


def copied_metadata(source: GgufFile) -> dict[str, MetaValue]:
    """All metadata of a file, byte for byte, except the keys about shards and alignment."""
    result: dict[str, MetaValue] = {}
    with FileSource(source.name) as reader:
        for key, entry in source.entries.items():
            if key in _DROPPED_KEYS:
                continue
            raw = reader.read_at(entry.offset, entry.nbytes)
            if entry.element_type is not None:
                raw = struct.pack("<IQ", entry.element_type, entry.count) + raw
            result[key] = MetaValue(entry.value_type, raw)
    return result


def padded(num_bytes: int) -> int:
    """`num_bytes` rounded up to the alignment."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def header(metadata: Mapping[str, MetaValue], tensors: Sequence[TensorSlot]) -> bytes:
    """Everything before the tensor data, padded. Its length does not depend on the tensors' types."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), struct.pack("<I", value.type_id), value.raw]
    offset = 0
    for tensor in tensors:
        dims = len(tensor.shape)
        parts += [
            _string(tensor.name),
            struct.pack(f"<I{dims}QIQ", dims, *tensor.shape, tensor.qtype, offset),
        ]
        offset += padded(tensor.num_bytes)
    raw = b"".join(parts)
    return raw.ljust(padded(len(raw)), b"\0")


def file_bytes(header_bytes: int, tensors: Iterable[TensorSlot]) -> int:
    """Size of the finished file."""
    return header_bytes + sum(padded(t.num_bytes) for t in tensors)


class GgufWriter:
    """Writes the header immediately, then every tensor in order.

    Raises: DiskFull, NotWritable: the disk is full, or its file system refuses such large files; from any call.
    OSError: other errors of the system. ValueError: a tensor with the wrong name or size.
    """

    def __init__(self, path: Path, metadata: Mapping[str, MetaValue], tensors: Sequence[TensorSlot]) -> None:
        self._slots = list(tensors)
        self._next = 0
        self._path = path
        self._file: BinaryIO = path.open("xb")
        head = header(metadata, tensors)
        self.header_bytes = len(head)
        self._put(head)

    def write(self, name: str, chunks: Iterable[bytes | np.ndarray[Any, Any]]) -> int:
        """Write the next tensor from chunks; returns the bytes of its data."""
        slot = self._slots[self._next]
        written = 0
        for chunk in chunks:
            written += self._put(chunk if isinstance(chunk, bytes) else chunk.tobytes())
        if slot.name != name or written != slot.num_bytes:
            raise ValueError(f"{name}: {written} bytes written, {slot.name} takes {slot.num_bytes}")
        self._put(bytes(padded(written) - written))
        self._next += 1
        return written

    def close(self) -> None:
        """Flush to the disk and close. Raises: ValueError: tensors are missing."""
        try:
            if self._next != len(self._slots):
                raise ValueError(f"{len(self._slots) - self._next} tensors were not written")
            with self._described():
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without finishing; the caller removes the file."""
        with suppress(OSError):  # of the part that is still in memory, after an earlier error
            self._file.close()

    def _put(self, data: bytes) -> int:
        with self._described():
            return self._file.write(data)

    @contextmanager
    def _described(self) -> Iterator[None]:
        """Raises: DiskFull, NotWritable: instead of the system's error, which does not name the file."""
        try:
            yield
        except OSError as error:
            whole = file_bytes(self.header_bytes, self._slots)
            if error.errno in NO_SPACE:
                missing = whole - self._path.stat().st_size
                raise DiskFull(str(self._path), missing, shutil.disk_usage(self._path.parent).free) from error
            if error.errno == errno.EFBIG:
                reason = f"its file system cannot hold a file of {whole:,} bytes (FAT32 ends at 4 GiB)"
                raise NotWritable(str(self._path), reason) from error
            raise


def _string(value: Scalar) -> bytes:
    raw = value if isinstance(value, bytes) else str(value).encode()
    return struct.pack("<Q", len(raw)) + raw

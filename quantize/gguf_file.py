"""Reading the header of a GGUF file (versions 2 and 3) without trusting a single number in it.

Every count, length, type, offset and size is checked against the limits below and against the file, in the
way llama.cpp's own loader does or more strictly, before native code sees the file. Nothing large is kept:
arrays of tokens are passed over by their lengths and decoded only when asked for.
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from quantize.byte_source import ByteSource, FileSource, Window
from quantize.errors import BadFile, IncompleteFile
from quantize.ggml_types import BLOCK_SIZES, GgmlType

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_MAX_DIMS = 4  # GGML_MAX_DIMS
_MAX_NAME_BYTES = 63  # GGML_MAX_NAME - 1
_MAX_KEY_BYTES = 65535  # the format's own limit


@dataclass(frozen=True)
class Limits:
    """How much a header may ask for. Real files: about 60 keys, 3,000 tensors, 600,000 strings, 20 MB.

    Measured: with every limit used up at once a header takes under 1 s and 100 MB (docs/log.md, library).
    """

    keys: int = 8192
    tensors: int = 40_000
    strings: int = 1_500_000
    text_bytes: int = 8 * 1024 * 1024
    small_array: int = 1024
    fetched_bytes: int = 128 * 1024 * 1024


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


_SCALARS: dict[int, struct.Struct] = {
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
    """An array left in the file: `count` elements in `nbytes` bytes from absolute `offset`."""

    element_type: ValueType
    count: int
    offset: int
    nbytes: int
    source: ByteSource = field(repr=False, compare=False)

    def __len__(self) -> int:
        return self.count

    def strings(self) -> list[bytes]:
        """Decode an array of strings, as raw bytes (vocabularies are not always UTF-8).

        Raises: BadFile: it holds something else, or the file changed. Unreadable.
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

    def numbers(self) -> np.ndarray[Any, Any]:
        """The array as numpy, shape (count,). Raises: BadFile: it holds strings, or the file changed."""
        if self.element_type is ValueType.STRING:
            raise BadFile(self.source.name, "expected numbers, found STRING", self.offset)
        raw = self.source.read_at(self.offset, self.nbytes)
        if len(raw) != self.nbytes:
            raise BadFile(self.source.name, "the file changed while it was read", self.offset)
        return np.frombuffer(raw, dtype=np.dtype(_SCALARS[self.element_type].format))


Value = bool | int | float | str | tuple[bool | int | float | str, ...] | LazyArray


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one metadata value lies and how it is typed; `element_type` is None unless it is an array."""

    value_type: ValueType
    element_type: ValueType | None
    count: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` as GGUF stores it (row length first), `offset` absolute in the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GgmlType
    offset: int
    nbytes: int

    @property
    def num_values(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A checked header. Tensor data begins at `data_offset`; the last tensor's ends at `end`."""

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
        """`<architecture>.<key>` if it is a whole number; the largest of an array of them (one a layer)."""
        value = self.arch_value(key)
        if isinstance(value, tuple):
            numbers = [v for v in value if isinstance(v, int) and not isinstance(v, bool)]
            return max(numbers, default=None)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def tensor_bytes(self, tensor: TensorInfo) -> np.ndarray[Any, Any]:
        """The data as a read-only map, shape (nbytes,) uint8.

        Only for child processes: a file that shrinks while mapped kills the process that touches it.
        """
        if tensor.nbytes == 0:
            return np.empty(0, np.uint8)
        return np.memmap(self.name, np.uint8, "r", tensor.offset, (tensor.nbytes,))


def read_gguf(path: str | os.PathLike[str], limits: Limits = Limits()) -> GgufFile:
    """Read and check the header of a local file; arrays stay lazy and reopen it.

    Raises: Unreadable. BadFile: it breaks the format or a limit. IncompleteFile: data is missing at the end.
    """
    source = FileSource(path)
    try:
        return read_gguf_source(source, limits, lazy_source=ReopenedFile(source.name, source.size))
    finally:
        source.close()


@dataclass(frozen=True, slots=True)
class ReopenedFile:
    """A file that is opened for each read, so that no descriptor is held between them."""

    name: str
    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        """See `FileSource.read_at`."""
        with FileSource(self.name) as source:
            return source.read_at(offset, length)


def read_gguf_source(
    source: ByteSource,
    limits: Limits = Limits(),
    *,
    lazy_source: ByteSource | None = None,
    known_arrays: Mapping[str, Entry] | None = None,
) -> GgufFile:
    """Read and check a header from any source.

    `known_arrays` are entries of a file believed to share its vocabulary (another quantization in the same
    repository): an array of strings of the same key and count is passed over without fetching it. The rest
    must then still parse and account for the whole file, or BadFile is raised: read again without the hint.
    """
    window = Window(source, limits.fetched_bytes)
    if window.take(4) != _MAGIC:
        raise BadFile(source.name, "not a GGUF file (it does not begin with GGUF)", 0)
    version = window.u32()
    if version & 0xFFFF == 0:
        raise BadFile(source.name, "written for a big-endian machine", 4)
    if version not in (2, 3):
        raise BadFile(source.name, f"GGUF version {version}; this runtime reads 2 and 3", 4)
    num_tensors = window.u64()
    num_keys = window.u64()
    if num_tensors > limits.tensors:
        raise BadFile(source.name, f"{num_tensors} tensors; at most {limits.tensors} are read", 8)
    if num_keys > limits.keys:
        raise BadFile(source.name, f"{num_keys} metadata keys; at most {limits.keys} are read", 16)
    reader = _MetadataReader(window, limits, lazy_source or source, known_arrays or {})
    for _ in range(num_keys):
        reader.read_pair()
    alignment = _alignment(reader, source.name)
    layout = _read_tensors(window, num_tensors, alignment, source.name)
    if reader.skipped_unread and not 0 <= source.size - layout.end < alignment:
        raise BadFile(source.name, "the vocabulary differs from that of the file it was compared with")
    return GgufFile(
        name=source.name,
        file_bytes=source.size,
        version=version,
        alignment=alignment,
        metadata=reader.metadata,
        entries=reader.entries,
        tensors=layout.tensors,
        data_offset=layout.data_offset,
        end=layout.end,
    )


class _MetadataReader:
    """Key-value pairs, one at a time, within a budget of strings and text."""

    def __init__(
        self, window: Window, limits: Limits, lazy_source: ByteSource, known_arrays: Mapping[str, Entry]
    ) -> None:
        self.skipped_unread = False
        self.metadata: dict[str, Value] = {}
        self.entries: dict[str, Entry] = {}
        self._window = window
        self._limits = limits
        self._lazy_source = lazy_source
        self._known = known_arrays
        self._strings_left = limits.strings
        self._text_left = limits.text_bytes

    def read_pair(self) -> None:
        """The next key and its value."""
        window = self._window
        at = window.tell()
        key = self._key(at)
        type_id = window.u32()
        if type_id == ValueType.ARRAY:
            self._read_array(key)
            return
        value_at = window.tell()
        value: Value
        if type_id == ValueType.STRING:
            value = self._text()
        elif type_id in _SCALARS:
            scalar = _SCALARS[type_id]
            (value,) = scalar.unpack(window.take(scalar.size))
        else:
            raise BadFile(window.source.name, f"key {key!r} has the unknown value type {type_id}", at)
        self.metadata[key] = value
        self.entries[key] = Entry(ValueType(type_id), None, 1, value_at, window.tell() - value_at)

    def _key(self, at: int) -> str:
        window = self._window
        length = window.u64()
        if not 0 < length <= _MAX_KEY_BYTES:
            raise BadFile(window.source.name, f"a metadata key of {length} bytes", at)
        self._spend_text(length)
        try:
            key = window.take(length).decode()
        except UnicodeDecodeError as error:
            raise BadFile(window.source.name, "a metadata key that is not UTF-8", at) from error
        if key in self.metadata:
            raise BadFile(window.source.name, f"the key {key!r} appears twice", at)
        return key

    def _spend_text(self, length: int) -> None:
        self._text_left -= length
        if self._text_left < 0:
            reason = f"more than {self._limits.text_bytes} bytes of text"
            raise BadFile(self._window.source.name, reason, self._window.tell())

    def _spend_strings(self, count: int) -> None:
        self._strings_left -= count
        if self._strings_left < 0:
            reason = f"more than {self._limits.strings} strings"
            raise BadFile(self._window.source.name, reason, self._window.tell())

    def _text(self) -> str:
        length = self._window.u64()
        self._spend_text(length)
        return self._window.take(length).decode(errors="replace")

    def _read_array(self, key: str) -> None:
        window = self._window
        at = window.tell()
        element = window.u32()
        count = window.u64()
        start = window.tell()
        value: Value
        if element == ValueType.STRING:
            value = self._string_array(key, count, start)
        elif element in _SCALARS:
            value = self._number_array(ValueType(element), count, start)
        else:
            kind = "nested arrays" if element == ValueType.ARRAY else f"the unknown element type {element}"
            raise BadFile(window.source.name, f"key {key!r} has {kind}", at)
        self.metadata[key] = value
        self.entries[key] = Entry(ValueType.ARRAY, ValueType(element), count, start, window.tell() - start)

    def _string_array(self, key: str, count: int, start: int) -> Value:
        window = self._window
        self._spend_strings(count)
        if count <= self._limits.small_array:
            return tuple(self._text() for _ in range(count))
        known = self._known.get(key)
        if known is not None and known.element_type is ValueType.STRING and known.count == count:
            window.skip(known.nbytes)
            self.skipped_unread = True
        else:
            window.skip_strings(count)
        return LazyArray(ValueType.STRING, count, start, window.tell() - start, self._lazy_source)

    def _number_array(self, element: ValueType, count: int, start: int) -> Value:
        window = self._window
        scalar = _SCALARS[element]
        nbytes = count * scalar.size
        if count <= self._limits.small_array:
            self._spend_text(count * 8)
            return tuple(v for (v,) in scalar.iter_unpack(window.take(nbytes)))
        window.skip(nbytes)
        return LazyArray(element, count, start, nbytes, self._lazy_source)


def _alignment(reader: _MetadataReader, name: str) -> int:
    entry = reader.entries.get("general.alignment")
    if entry is None:
        return _DEFAULT_ALIGNMENT
    value = reader.metadata["general.alignment"]
    if entry.value_type is not ValueType.UINT32 or not isinstance(value, int):
        raise BadFile(name, "general.alignment is not a UINT32", entry.offset)
    if value == 0 or value & (value - 1) or value > 1 << 20:
        raise BadFile(name, f"general.alignment is {value}, which is no power of two up to 1 MiB", entry.offset)
    return value


@dataclass(frozen=True, slots=True)
class _Layout:
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    end: int


def _read_tensors(window: Window, count: int, alignment: int, name: str) -> _Layout:
    """The tensor table, whose offsets must follow each other without gap or overlap, as llama.cpp demands."""
    rows: list[tuple[str, tuple[int, ...], GgmlType, int, int]] = []
    seen: set[str] = set()
    expected = 0
    end = 0
    for _ in range(count):
        at = window.tell()
        tensor_name, shape, ggml_type, offset = _tensor_row(window, at)
        if tensor_name in seen:
            raise BadFile(name, f"the tensor {tensor_name!r} appears twice", at)
        seen.add(tensor_name)
        nbytes = _tensor_bytes(name, tensor_name, shape, ggml_type, at)
        if offset != expected:
            raise BadFile(name, f"tensor {tensor_name!r} lies at {offset}, expected at {expected}", at)
        rows.append((tensor_name, shape, ggml_type, offset, nbytes))
        end = offset + nbytes
        expected = -(-end // alignment) * alignment
    data_offset = -(-window.tell() // alignment) * alignment if count else window.tell()
    size = window.source.size
    if count and data_offset + end > size:
        raise IncompleteFile(name, size, data_offset + end)
    tensors = tuple(TensorInfo(n, s, t, data_offset + o, b) for n, s, t, o, b in rows)
    return _Layout(tensors, data_offset, data_offset + end)


def _tensor_row(window: Window, at: int) -> tuple[str, tuple[int, ...], GgmlType, int]:
    source = window.source.name
    length = window.u64()
    if not 0 < length <= _MAX_NAME_BYTES:
        raise BadFile(source, f"a tensor name of {length} bytes", at)
    try:
        name = window.take(length).decode()
    except UnicodeDecodeError as error:
        raise BadFile(source, "a tensor name that is not UTF-8", at) from error
    if not name.isprintable():
        raise BadFile(source, "a tensor name with control characters", at)
    dims = window.u32()
    if dims > _MAX_DIMS:
        raise BadFile(source, f"tensor {name!r} has {dims} dimensions", at)
    shape = struct.unpack(f"<{dims}Q", window.take(8 * dims))
    type_id = window.u32()
    try:
        ggml_type = GgmlType(type_id)
    except ValueError as error:
        raise BadFile(source, f"tensor {name!r} has the unknown type {type_id}", at) from error
    return name, shape, ggml_type, window.u64()


def _tensor_bytes(source: str, name: str, shape: tuple[int, ...], ggml_type: GgmlType, at: int) -> int:
    block, size = BLOCK_SIZES[ggml_type]
    num_values = math.prod(shape)
    # 2^56 values: far above any model, far below what wraps in 64-bit arithmetic downstream.
    if num_values > 1 << 56 or max(shape, default=0) > 1 << 56:
        raise BadFile(source, f"tensor {name!r} has an impossible shape {shape}", at)
    if (shape[0] if shape else 1) % block:
        raise BadFile(source, f"tensor {name!r}: rows of {shape[:1]} do not fill blocks of {block}", at)
    return num_values // block * size

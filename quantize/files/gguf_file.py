"""Reads the header of a GGUF file (versions 2 and 3) and treats every number in it as untrusted.

Every count, length, type, offset and size is checked against the limits below and against the file. The checks are
at least as strict as llama.cpp's loader and run before native code sees the file. Nothing large stays in memory:
token arrays are skipped by their lengths and decoded only on request.
"""

import math
import os
import struct
from collections.abc import Mapping

import msgspec

from quantize.errors import BadFile, IncompleteFile
from quantize.files.byte_source import ByteSource, FileSource, Window
from quantize.files.gguf_header import (
    LIMITS,
    SCALARS,
    Entry,
    GgufFile,
    LazyArray,
    Limits,
    TensorInfo,
    Value,
    ValueType,
)
from quantize.ggml_types import BLOCK_SIZES, GgmlType

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_FIRST_BYTES = 64 * 1024
_FIRST_FETCH_BYTES = 16 * 1024  # up to the vocabulary, if it will be skipped
_MAX_DIMS = 4  # GGML_MAX_DIMS
_MAX_NAME_BYTES = 63  # GGML_MAX_NAME - 1
_MAX_KEY_BYTES = 65535  # the format's own limit


def read_gguf(path: str | os.PathLike[str], limits: Limits = LIMITS) -> GgufFile:
    """Read and check the header of a local file; arrays stay lazy and reopen the file.

    Raises: Unreadable. BadFile: it violates the format or a limit. IncompleteFile: data is missing at the end.
    """
    source = FileSource(path)
    try:
        return read_gguf_source(source, limits, lazy_source=ReopenedFile(source.name, source.size))
    finally:
        source.close()


def read_gguf_header(path: str | os.PathLike[str]) -> GgufFile:
    """The header of a local file, of which its weights may be missing; `file_bytes` are those of the whole file.

    Raises: as `read_gguf`. IncompleteFile: it ends within its header.
    """
    try:
        return read_gguf(path)
    except IncompleteFile as error:
        if not error.known:
            raise
        whole_bytes = error.needed_bytes
    return read_gguf_source(ReopenedFile(str(path), whole_bytes))


class ReopenedFile(msgspec.Struct, frozen=True):
    """A file of this size that is opened for each read, so that no descriptor stays open in between."""

    name: str
    size: int

    def read_at(self, offset: int, length: int) -> bytes:
        """See `FileSource.read_at`."""
        with FileSource(self.name) as source:
            return source.read_at(offset, length)


def read_gguf_source(
    source: ByteSource,
    limits: Limits = LIMITS,
    *,
    lazy_source: ByteSource | None = None,
    cached_arrays: Mapping[str, Entry] | None = None,
) -> GgufFile:
    """Read and check a header from any source.

    `cached_arrays` are entries of a file that probably has the same vocabulary (another quantization in the same
    repository). If a string array has the same key and count, it and the following large arrays are skipped
    together without fetching them. The rest must then still parse and account for the whole file, otherwise BadFile
    is raised: read again without the hint.
    """
    window = Window(source, limits.fetched_bytes, _FIRST_FETCH_BYTES if cached_arrays else _FIRST_BYTES)
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
    reader = _MetadataReader(window, limits, lazy_source or source, cached_arrays or {})
    while len(reader.metadata) < num_keys:
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
    """Reads key-value pairs one at a time, with limits for strings and text."""

    def __init__(
        self, window: Window, limits: Limits, lazy_source: ByteSource, cached_arrays: Mapping[str, Entry]
    ) -> None:
        self.skipped_unread = False
        self.metadata: dict[str, Value] = {}
        self.entries: dict[str, Entry] = {}
        self._window = window
        self._limits = limits
        self._lazy_source = lazy_source
        self._cached = cached_arrays
        self._strings_left = limits.strings
        self._text_left = limits.text_bytes

    def read_pair(self) -> None:
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
        elif type_id in SCALARS:
            scalar = SCALARS[type_id]
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
        elif element in SCALARS:
            value = self._number_array(ValueType(element), count, start)
        else:
            kind = "nested arrays" if element == ValueType.ARRAY else f"the unknown element type {element}"
            raise BadFile(window.source.name, f"key {key!r} has {kind}", at)
        self.metadata[key] = value
        nbytes = value.nbytes if isinstance(value, LazyArray) else window.tell() - start
        self.entries[key] = Entry(ValueType.ARRAY, ValueType(element), count, start, nbytes)

    def _string_array(self, key: str, count: int, start: int) -> Value:
        window = self._window
        self._spend_strings(count)
        if count <= self._limits.small_array:
            return tuple(self._text() for _ in range(count))
        cached = self._cached.get(key)
        if cached is not None and cached.element_type is ValueType.STRING and cached.count == count:
            window.skip(cached.nbytes)
            self._skip_run(cached, window.tell() - cached.offset - cached.nbytes)
            return LazyArray(ValueType.STRING, count, start, cached.nbytes, self._lazy_source)
        window.skip_strings(count)
        return LazyArray(ValueType.STRING, count, start, window.tell() - start, self._lazy_source)

    def _skip_run(self, last: Entry, shift: int) -> None:
        """Skip the large arrays that follow `last` in the known file, with their keys, in one step.

        In this file all positions are `shift` bytes larger.
        """
        self.skipped_unread = True
        end = last.offset + last.nbytes
        for key, entry in self._cached.items():
            # Key length, key, array type, element type and count precede the elements.
            starts = entry.offset - (8 + len(key.encode()) + 4 + 4 + 8)
            large = entry.element_type is not None and entry.count > self._limits.small_array
            if starts == end and large and key not in self.metadata:
                kind, end = entry.element_type, entry.offset + entry.nbytes
                assert kind is not None
                at = entry.offset + shift
                self.metadata[key] = LazyArray(kind, entry.count, at, entry.nbytes, self._lazy_source)
                self.entries[key] = Entry(ValueType.ARRAY, kind, entry.count, at, entry.nbytes)
        self._window.skip(end - last.offset - last.nbytes)

    def _number_array(self, element: ValueType, count: int, start: int) -> Value:
        window = self._window
        scalar = SCALARS[element]
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
        raise BadFile(name, f"general.alignment is {value}, which is not a power of two up to 1 MiB", entry.offset)
    return value


class _Layout(msgspec.Struct, frozen=True):
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    end: int


def _read_tensors(window: Window, count: int, alignment: int, name: str) -> _Layout:
    """Read the tensor table; offsets must follow each other without gap or overlap, as llama.cpp requires."""
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
            raise BadFile(name, f"tensor {tensor_name!r} is at {offset}, expected at {expected}", at)
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
    # 2^56 values: far above any model, far below an overflow of 64-bit arithmetic in later code.
    if num_values > 1 << 56 or max(shape, default=0) > 1 << 56:
        raise BadFile(source, f"tensor {name!r} has an impossible shape {shape}", at)
    if (shape[0] if shape else 1) % block:
        raise BadFile(source, f"tensor {name!r}: rows of {shape[:1]} do not fill blocks of {block}", at)
    return num_values // block * size

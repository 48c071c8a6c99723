"""Cache of remote GGUF headers by content hash: planning a repository again reads nothing from the network."""

import logging
from pathlib import Path

import msgspec

from devices.atomic_file import write_atomically
from devices.msgspec_lock import learned
from quantize.files.gguf_file import Entry, GgufFile, TensorInfo, Value
from quantize.ggml_types import GgmlType

_log = logging.getLogger(__name__)
_FORMAT = 1
_MAX_BYTES = 8 * 1024 * 1024


class CachedHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a header that planning needs; arrays that were not read are omitted."""

    format: int
    size_bytes: int
    version: int
    alignment: int
    data_offset: int
    end: int
    metadata: dict[str, bool | int | float | str | list[bool | int | float | str]]
    tensors: list[tuple[str, list[int], int, int, int]]


def keep(folder: Path, sha256: str, header: GgufFile) -> None:
    """Store a header in the cache; a failure to write is only logged."""
    simple = (bool, int, float, str)
    metadata: dict[str, bool | int | float | str | list[bool | int | float | str]] = {}
    for key, value in header.metadata.items():
        if isinstance(value, simple):
            metadata[key] = value
        elif isinstance(value, tuple):
            metadata[key] = list(value)
    cached = CachedHeader(
        format=_FORMAT,
        size_bytes=header.file_bytes,
        version=header.version,
        alignment=header.alignment,
        data_offset=header.data_offset,
        end=header.end,
        metadata=metadata,
        tensors=[(t.name, list(t.shape), int(t.ggml_type), t.offset, t.nbytes) for t in header.tensors],
    )
    try:
        write_atomically(folder / f"{sha256}.header", msgspec.msgpack.encode(cached), durable=False)
    except OSError as error:
        _log.info("header not kept: %s", error)


def recall(folder: Path, sha256: str, name: str) -> GgufFile | None:
    """The cached header of that content, or None."""
    path = folder / f"{sha256}.header"
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        cached = msgspec.msgpack.decode(path.read_bytes(), type=learned(CachedHeader))
        tensors = tuple(
            TensorInfo(tensor, tuple(shape), GgmlType(kind), offset, nbytes)
            for tensor, shape, kind, offset, nbytes in cached.tensors
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        _log.info("cached header not readable: %s", error)
        return None
    if cached.format != _FORMAT:
        return None
    metadata: dict[str, Value] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in cached.metadata.items()
    }
    entries: dict[str, Entry] = {}
    return GgufFile(
        name=name,
        file_bytes=cached.size_bytes,
        version=cached.version,
        alignment=cached.alignment,
        metadata=metadata,
        entries=entries,
        tensors=tensors,
        data_offset=cached.data_offset,
        end=cached.end,
    )

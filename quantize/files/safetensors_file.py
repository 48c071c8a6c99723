"""Reads safetensors headers and sharded indexes as untrusted input; rejects pickles without reading them."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from devices.msgspec_lock import learned
from quantize.errors import BadFile, IncompleteFile, MissingParts, RefusedFormat
from quantize.files.byte_source import ByteSource, FileSource, mapped_bytes

if TYPE_CHECKING:
    import numpy as np

# The reference library allows 100 MB; the largest real header (one file, 30,000 tensors) has about 4 MB.
_MAX_HEADER_BYTES = 8 * 1024 * 1024
_MAX_INDEX_BYTES = 24 * 1024 * 1024
_MAX_TENSORS = 65_536
_MAX_INDEX_TENSORS = 200_000
_MAX_DIMS = 8
_MAX_SHARDS = 4096
_MAX_FILE_NAME_BYTES = 255
_LENGTH_BYTES = 8
_SPAN_ITEMS = 2  # begin and end of a span
_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
INDEX_NAME = "model.safetensors.index.json"
WHOLE_NAME = "model.safetensors"
_NUMBERED = re.compile(r"(.+)-\d{5}-of-(\d{5})\.safetensors$")

# Bits of one value. Source: safetensors 0.6, enum Dtype (sub-byte types included).
DTYPE_BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class SafetensorInfo(msgspec.Struct, frozen=True):
    """One tensor: `shape` in C order, `offset` absolute in the file, `nbytes` of data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A checked header; tensors in the order of their data."""

    name: str
    file_bytes: int
    data_offset: int
    metadata: Mapping[str, str] = field(repr=False)
    tensors: tuple[SafetensorInfo, ...] = field(repr=False)

    def tensor_bytes(self, tensor: SafetensorInfo) -> "np.ndarray[Any, Any]":
        """The tensor's data, see `mapped_bytes`."""
        return mapped_bytes(self.name, tensor.offset, tensor.nbytes)


class SafetensorsModel(msgspec.Struct, frozen=True):
    """All shards of one model folder; every tensor name maps to the shard that holds it."""

    folder: Path
    files: tuple[SafetensorsFile, ...]

    @property
    def file_bytes(self) -> int:
        """Size of all shards."""
        return sum(f.file_bytes for f in self.files)

    def tensors(self) -> dict[str, tuple[SafetensorsFile, SafetensorInfo]]:
        return {t.name: (f, t) for f in self.files for t in f.tensors}


def refuse_pickle(path: str | os.PathLike[str]) -> None:
    """Reject pickles and zip files of pickles by name or first bytes. Raises: RefusedFormat."""
    path = Path(path)
    reason = "pickled weights can run code when read; use the safetensors or GGUF files of this model"
    if path.suffix.lower() in _PICKLES:
        raise RefusedFormat(str(path), reason)
    with FileSource(path) as source:
        head = source.read_at(0, _LENGTH_BYTES + 1)
    # A header of 640 bytes begins as a pickle does, but its JSON follows the length.
    if head[_LENGTH_BYTES:] == b"{" and path.suffix.lower() == ".safetensors":
        return
    if head[:2] in {b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"} or head[:4] == b"PK\x03\x04":
        raise RefusedFormat(str(path), reason)


def read_safetensors(path: str | os.PathLike[str]) -> SafetensorsFile:
    """Read and check one local file's header. Raises: Unreadable, RefusedFormat, BadFile, IncompleteFile."""
    refuse_pickle(path)
    with FileSource(path) as source:
        return read_safetensors_source(source)


def read_safetensors_source(source: ByteSource) -> SafetensorsFile:
    """Read and check a header from any source. Data must be covered exactly: no gap, overlap or remaining bytes."""
    name = source.name
    head = source.read_at(0, 8)
    if len(head) < _LENGTH_BYTES:
        raise IncompleteFile(name, source.size, 8)
    length = int.from_bytes(head, "little")
    if length > _MAX_HEADER_BYTES:
        raise BadFile(name, f"a header of {length} bytes; at most {_MAX_HEADER_BYTES} are read", 0)
    if 8 + length > source.size:
        raise IncompleteFile(name, source.size, 8 + length)
    header = _parse(name, source.read_at(8, length))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise BadFile(name, "__metadata__ is not a table of strings")
    rows = sorted((_row(name, key, value) for key, value in header.items()), key=lambda r: (r[3], r[4]))
    expected = 0
    for key, _, _, begin, end in rows:
        if begin != expected:
            kind = "overlaps another" if begin < expected else "leaves a gap before it"
            raise BadFile(name, f"tensor {key!r} {kind}: begins at {begin}, expected {expected}")
        expected = end
    data_offset = 8 + length
    if data_offset + expected > source.size:
        raise IncompleteFile(name, source.size, data_offset + expected)
    if data_offset + expected < source.size:
        raise BadFile(name, f"{source.size - data_offset - expected} bytes follow the last tensor")
    tensors = tuple(SafetensorInfo(k, d, s, data_offset + b, e - b) for k, d, s, b, e in rows)
    return SafetensorsFile(name, source.size, data_offset, metadata, tensors)


def _parse(name: str, raw: bytes) -> dict[str, Any]:
    # Count containers and items before parsing, to limit the memory of the parsed objects.
    if raw.count(b"{") + raw.count(b"[") > 3 * _MAX_TENSORS + 2 or raw.count(b",") > 12 * _MAX_TENSORS:
        raise BadFile(name, f"more than {_MAX_TENSORS} tensors")
    if not raw.startswith(b"{"):
        raise BadFile(name, "the header is no JSON object", 8)
    try:
        header = json.loads(raw, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadFile(name, f"the header is not valid JSON: {str(error)[:200]}", 8) from error
    if not isinstance(header, dict):
        raise BadFile(name, "the header is no JSON object", 8)
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value] # add returns None
        raise ValueError(f"the name {twice[:80]!r} appears twice")
    return result


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _row(file: str, name: str, value: Any) -> tuple[str, str, tuple[int, ...], int, int]:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise BadFile(file, f"tensor {name[:80]!r} is not described by dtype, shape and data_offsets")
    dtype, shape, span = value["dtype"], value["shape"], value["data_offsets"]
    bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise BadFile(file, f"tensor {name[:80]!r} has the unknown dtype {str(dtype)[:40]!r}")
    if not _are_sizes(shape) or len(shape) > _MAX_DIMS:
        raise BadFile(file, f"tensor {name[:80]!r} has an impossible shape")
    if not _are_sizes(span) or len(span) != _SPAN_ITEMS or span[0] > span[1]:
        raise BadFile(file, f"tensor {name[:80]!r} has impossible data_offsets")
    if math.prod(shape) * bits != (span[1] - span[0]) * 8:
        raise BadFile(file, f"tensor {name[:80]!r}: {dtype} {shape} does not take {span[1] - span[0]} bytes")
    return name, dtype, tuple(shape), span[0], span[1]


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 56 for v in values)


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def links_root(folder: Path) -> Path:
    """The folder that links may point into: a Hugging Face snapshot links to its repository's blobs."""
    repository = folder.parent.parent
    return repository if folder.parent.name == "snapshots" and repository.name.startswith("models--") else folder


def safe_member(folder: Path, member: str, root: Path | None = None) -> Path:
    """The path of a file that an untrusted index names in `folder`: a plain name that stays within `root`.

    `root` (default `links_root`) limits symbolic links. Raises: BadFile: it leads anywhere else; nothing was
    opened.
    """
    plain = (
        bool(member)
        and member not in {".", ".."}
        and not any(c in member for c in '/\\:*?"<>|')
        and member.isprintable()
        and len(member.encode(errors="replace")) <= _MAX_FILE_NAME_BYTES
    )
    if not plain:
        raise BadFile(str(folder), f"the index names {member[:80]!r}, which is not a plain file name")
    path = folder / member
    if not path.resolve().is_relative_to((root or links_root(folder)).resolve()):
        raise BadFile(str(folder), f"{member!r} leads out of the model's folder")
    return path


def read_index(path: str | os.PathLike[str]) -> dict[str, str]:
    """The `weight_map` of an index file: unchecked file names by tensor name."""
    with FileSource(path) as source:
        if source.size > _MAX_INDEX_BYTES:
            raise BadFile(source.name, f"an index of {source.size} bytes; at most {_MAX_INDEX_BYTES} are read")
        raw = source.read_at(0, source.size)
    if raw.count(b":") > 2 * _MAX_INDEX_TENSORS:
        raise BadFile(str(path), f"more than {_MAX_INDEX_TENSORS} tensors")
    try:
        return msgspec.json.decode(raw, type=learned(_Index)).weight_map
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFile(str(path), f"no valid index: {str(error)[:200]}") from error


def read_safetensors_folder(folder: str | os.PathLike[str], root: Path | None = None) -> SafetensorsModel:
    """Read every shard of a model folder; the index and the shards must agree.

    Raises: MissingParts, IncompleteFile: a shard is missing or truncated. RefusedFormat: only pickles. BadFile.
    Unreadable.
    """
    folder = Path(folder)
    index = folder / INDEX_NAME
    if index.exists():
        weight_map = read_index(safe_member(folder, INDEX_NAME, root))
        names = sorted(set(weight_map.values()))
        if len(names) > _MAX_SHARDS:
            raise BadFile(str(index), f"{len(names)} shards")
        paths = [safe_member(folder, name, root) for name in names]
        _check_present(folder, paths)
    else:
        weight_map = {}
        names = [p.name for p in sorted(folder.glob("*.safetensors"))]
        if WHOLE_NAME in names:  # others are adapters, or the same weights in another program's form
            names = [WHOLE_NAME]
        paths = [safe_member(folder, name, root) for name in names]
        if not paths:
            _explain_absence(folder)
        _check_numbers(folder, paths)
    files = tuple(read_safetensors(p) for p in paths)
    _check_shards(folder, files, weight_map)
    return SafetensorsModel(folder, files)


def _check_present(folder: Path, paths: Iterable[Path]) -> None:
    """Raises: MissingParts."""
    sizes = {path.name: path.stat().st_size if path.exists() else None for path in paths}
    if missing := tuple(name for name, size in sizes.items() if size is None):
        raise MissingParts(str(folder), sum(size or 0 for size in sizes.values()), missing)


def _check_numbers(folder: Path, paths: list[Path]) -> None:
    """Check numbered shards of a folder without an index. Raises: MissingParts."""
    numbered = [match for path in paths if (match := _NUMBERED.match(path.name))]
    for stem, count in {match.groups() for match in numbered}:
        names = (f"{stem}-{n + 1:05}-of-{count}.safetensors" for n in range(min(int(count), _MAX_SHARDS)))
        _check_present(folder, (folder / name for name in names))


def _explain_absence(folder: Path) -> None:
    pickles = [p for p in sorted(folder.glob("*")) if p.suffix.lower() in _PICKLES]
    for pickle in pickles:
        refuse_pickle(pickle)
    raise BadFile(str(folder), "no safetensors file in this folder")


def _check_shards(folder: Path, files: tuple[SafetensorsFile, ...], weight_map: dict[str, str]) -> None:
    where: dict[str, str] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.name in where:
                raise BadFile(str(folder), f"two shards hold the tensor {tensor.name[:80]!r}")
            where[tensor.name] = Path(file.name).name
    if weight_map and weight_map != where:
        wrong = next((n for n in weight_map if where.get(n) != weight_map[n]), None)
        wrong = wrong or next(n for n in where if n not in weight_map)
        raise BadFile(str(folder), f"index and shards disagree about the tensor {wrong[:80]!r}")

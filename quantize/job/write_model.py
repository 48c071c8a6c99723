"""Writes a model file in new types: copies metadata; copies tensors, takes them from the cache or rounds them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quantize.errors import BadFile
from quantize.files.gguf_file import GgufFile, TensorInfo, read_gguf
from quantize.files.gguf_split import read_gguf_model
from quantize.files.gguf_write import GgufWriter, MetaValue, TensorSlot, copied_metadata, scalar
from quantize.files.imatrix import Importance, read_imatrix
from quantize.files.provenance import KEY, Provenance, blank
from quantize.ggml_types import GgmlType
from quantize.measurements import Step
from quantize.native.encode import copied, encoded
from quantize.native.source_weights import SourceWeights

_QUANTIZATION_VERSION = 2  # Source: ggml.h, GGML_QNT_VERSION
_CACHE_CHUNK_BYTES = 8 << 20


class WriteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Write `source` to `out` (which must not exist) with the tensors of `types` in those types.

    `packed` names files of finished blocks by tensor. ggml rounds all others with `imatrix`, or they are copied if
    the type stays the same. `file_type` is llama.cpp's number of the nearest preset. `provenance` False omits
    Tessera's metadata.
    """

    source: Path
    out: Path
    types: dict[str, str]
    file_type: int
    imatrix: Path | None = None
    packed: dict[str, Path] = {}
    provenance: bool = True
    threads: int = 1


def output_metadata(source: GgufFile, file_type: int, *, provenance: bool) -> dict[str, MetaValue]:
    """The metadata of a quantized file; its size depends only on the source."""
    meta = copied_metadata(source)
    meta["general.quantization_version"] = scalar(_QUANTIZATION_VERSION)
    meta["general.file_type"] = scalar(file_type)
    meta.pop(KEY, None)
    if provenance:
        meta[KEY] = scalar(blank())
    return meta


def output_slots(tensors: list[tuple[GgufFile, TensorInfo]], types: Mapping[str, str]) -> list[TensorSlot]:
    """Name, shape and type of every output tensor, in the source's order."""
    return [TensorSlot(t.name, t.shape, GgmlType[types[t.name]]) for _, t in tensors]


def plain_types(request: WriteRequest) -> dict[str, str]:
    """The tensors that `write_model` rounds itself, with their types."""
    tensors = read_gguf_model(request.source).tensors()
    changed = {t.name: request.types[t.name] for _, t in tensors if request.types[t.name] != t.ggml_type.name}
    return {name: qtype for name, qtype in changed.items() if name not in request.packed}


def write_model(request: WriteRequest, send: Step) -> int:
    """Write the file and return its size in bytes.

    Raises: BadFile: a value is not finite, or cached blocks have the wrong size. OSError: writing failed.
    """
    model = read_gguf_model(request.source)
    tensors = model.tensors()
    weights = SourceWeights(request.source)
    importance = read_imatrix(request.imatrix) if request.imatrix else {}
    slots = output_slots(tensors, request.types)
    meta = output_metadata(model.parts[0], request.file_type, provenance=request.provenance)
    total, done = float(sum(s.num_bytes for s in slots)), 0.0
    writer = GgufWriter(request.out, meta, slots)
    try:
        for (part, tensor), slot in zip(tensors, slots, strict=True):
            send(done, total, tensor.name)
            done += writer.write(slot.name, _data(request, weights, part, tensor, slot, importance))
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    send(total, total, "")
    return request.out.stat().st_size


def _data(
    request: WriteRequest,
    weights: SourceWeights,
    part: GgufFile,
    tensor: TensorInfo,
    slot: TensorSlot,
    importance: Mapping[str, Importance],
) -> Iterator[Any]:
    if slot.qtype is tensor.ggml_type:
        return copied(part, tensor)
    if slot.name in request.packed:
        return _from_cache(request.packed[slot.name], slot)
    weights_of = importance.get(slot.name)
    return encoded(weights, slot.name, slot.qtype.name, weights_of, request.threads)


def _from_cache(path: Path, slot: TensorSlot) -> Iterator[Any]:
    size = path.stat().st_size
    if size != slot.num_bytes:
        raise BadFile(str(path), f"{size} bytes for {slot.name}, which takes {slot.num_bytes}")
    for start in range(0, size, _CACHE_CHUNK_BYTES):
        yield np.fromfile(path, np.uint8, _CACHE_CHUNK_BYTES, offset=start)


def stamp(path: Path, provenance: Provenance) -> None:
    """Write the provenance into the space reserved for it in a finished file. Raises: BadFile: no such space."""
    entry = read_gguf(path).entries.get(KEY)
    text = provenance.encode()
    size = entry.nbytes - 8 if entry else -1
    if entry is None or size != len(text):
        raise BadFile(str(path), f"no place of {len(text)} bytes for {KEY}")
    with path.open("r+b") as file:
        file.seek(entry.offset + 8)
        file.write(text)

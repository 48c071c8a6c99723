"""Rounds a source's tensors to another type with ggml, in chunks of limited size; for child processes."""

import ctypes
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.errors import BadFile
from quantize.files.gguf_file import GgufFile, TensorInfo
from quantize.files.imatrix import Importance
from quantize.ggml_types import GgmlType
from quantize.native.blocks import quantize_rows
from quantize.native.libraries import llama
from quantize.native.source_weights import SourceWeights

Blocks = npt.NDArray[np.uint8]

# Values per thread at a time: 8 MB as float32. Small enough for many threads, large enough to hide Python's
# overhead.
_CHUNK_VALUES = 1 << 21
_FLOATS: dict[GgmlType, np.dtype[Any]] = {GgmlType.F32: np.dtype("<f4"), GgmlType.F16: np.dtype("<f2")}


def encoded(
    source: SourceWeights, name: str, qtype: str, importance: Importance | None, threads: int
) -> Iterator[Blocks]:
    """A tensor's rows in type `qtype`, in order, as chunks of (rows, row_bytes) uint8.

    llama-quantize writes the same bytes with the same importance matrix; they do not depend on `threads`.

    Raises: BadFile: a value is not finite (the error names the tensor). ValueError: the type is not possible.
    """
    matrices, rows, width = source.shape(name)
    if importance is not None and importance.sums.shape[1] != width:
        importance = None
    step = max(1, _CHUNK_VALUES // width)

    def encoded(matrix: int, start: int) -> Blocks:
        weights = source.rows(name, matrix, slice(start, start + step))
        scale = None if importance is None else importance.mean(matrix)
        return quantize_rows(weights, qtype, scale)

    starts = [(m, start) for m in range(matrices) for start in range(0, rows, step)]
    if threads <= 1 or len(starts) == 1:
        for start in starts:
            yield encoded(*start)
        return
    with ThreadPoolExecutor(max_workers=threads) as pool:
        ahead: deque[Future[Any]] = deque()
        for start in starts:
            ahead.append(pool.submit(encoded, *start))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def copied(part: GgufFile, tensor: TensorInfo) -> Iterator[Blocks]:
    """A tensor's unchanged bytes. Raises: BadFile: a float value is not finite (the error names the tensor)."""
    dtype = _FLOATS.get(tensor.ggml_type)
    step = _CHUNK_VALUES * 4
    for start in range(0, tensor.nbytes, step):
        # Another map for each chunk: the pages that were read stay in memory as long as their map.
        chunk: Blocks = np.array(part.tensor_bytes(tensor)[start : start + step])
        if dtype is not None and not np.isfinite(chunk.view(dtype)).all():
            raise BadFile(part.name, f"tensor {tensor.name} contains infinite values or NaN", tensor.offset)
        yield chunk


def tokenize(path: Path, texts: list[str]) -> list[list[int]] | None:
    """Token ids of each text, with special tokens parsed and nothing added.

    Returns None if llama.cpp does not accept the vocabulary.
    """
    lib = llama()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        return None
    try:
        vocab = lib.llama_model_get_vocab(model)
        return [_ids(lib, vocab, text) for text in texts]
    finally:
        lib.llama_model_free(model)


def _ids(lib: object, vocab: object, text: str) -> list[int]:
    raw = text.encode()
    size = len(raw) + 8
    out = (ctypes.c_int32 * size)()
    count = lib.llama_tokenize(vocab, raw, len(raw), out, size, False, True)  # type: ignore[attr-defined] # untyped
    return list(out[: max(0, count)])

"""Packs rows of weights into blocks and unpacks them, with ggml's own reference code."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.ggml_types import GgmlType
from quantize.native.libraries import ggml_base

Blocks = npt.NDArray[np.uint8]
Weights = npt.NDArray[np.float32]

_TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_CHUNK_VALUES = 1 << 20  # values per thread at a time: about 4 MB of float32


class _TypeTraits(ctypes.Structure):
    """Source: ggml.h, struct ggml_type_traits."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", _TO_FLOAT),
        ("from_float_ref", ctypes.c_void_p),
    )


class TypeTraits(msgspec.Struct, frozen=True):
    """ggml's facts about a type: `block_values` weights take `block_bytes` bytes."""

    qtype: str
    type_id: int
    block_values: int
    block_bytes: int
    needs_importance: bool

    def row_bytes(self, row_values: int) -> int:
        """Bytes of a row. Raises: ValueError: the row is not a whole number of blocks."""
        if row_values <= 0 or row_values % self.block_values:
            raise ValueError(f"a row of {row_values} is not a multiple of {self.block_values} ({self.qtype})")
        return row_values // self.block_values * self.block_bytes


@cache
def type_traits(qtype: str) -> TypeTraits:
    """Facts about a type by its GGML name ("Q4_K"). Raises: ValueError: ggml does not know the type."""
    try:
        type_id = int(GgmlType[qtype])
    except KeyError as error:
        raise ValueError(f"unknown tensor type {qtype!r}") from error
    raw = _raw_traits(type_id)
    lib = ggml_base()
    lib.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    lib.ggml_quantize_requires_imatrix.argtypes = [ctypes.c_int]
    return TypeTraits(
        qtype=qtype,
        type_id=type_id,
        block_values=int(raw.blck_size),
        block_bytes=int(raw.type_size),
        needs_importance=bool(lib.ggml_quantize_requires_imatrix(type_id)),
    )


def quantize_rows(weights: Weights, qtype: str, importance: Weights | None = None, *, threads: int = 1) -> Blocks:
    """Round rows of weights to packed blocks, exactly as llama-quantize does.

    Args: weights: (rows, row_values) float32. importance: (row_values,) non-negative weights of the columns, shared
    by all rows. threads: number of threads that share the rows; the result does not depend on it.
    Returns: (rows, row_bytes) uint8.
    Raises: ValueError: shapes do not fit, a value is not finite, or the type needs an importance and has none.
    """
    traits = type_traits(qtype)
    if weights.ndim != 2 or weights.dtype != np.float32:
        raise ValueError(f"expected a float32 matrix, found {weights.dtype} of {weights.ndim} dimensions")
    source = np.ascontiguousarray(weights)
    rows, width = source.shape
    out = np.empty((rows, traits.row_bytes(width)), np.uint8)
    # ggml aborts the process on some non-finite values and on a missing importance, so check both first.
    if not np.isfinite(source).all():
        raise ValueError("weights are not finite")
    scale = None
    if importance is not None:
        scale = np.ascontiguousarray(importance, np.float32)
        if scale.shape != (width,) or not np.isfinite(scale).all() or (scale < 0).any():
            raise ValueError(f"importance must be {width} finite values of at least zero")
    elif traits.needs_importance:
        raise ValueError(f"{qtype} needs an importance matrix")
    if rows == 0:
        return out
    if traits.qtype == "F32":
        return source.view(np.uint8).reshape(rows, -1).copy()

    lib = ggml_base()
    chunk = lib.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    lib.ggml_quantize_init.argtypes = [ctypes.c_int]
    lib.ggml_quantize_init.restype = None
    lib.ggml_quantize_init(traits.type_id)
    scale_ptr = None if scale is None else scale.ctypes.data
    step = max(1, _CHUNK_VALUES // width)

    def run(first: int) -> None:
        count = min(step, rows - first)
        chunk(traits.type_id, source.ctypes.data, out.ctypes.data, first * width, count, width, scale_ptr)

    _share_out(run, range(0, rows, step), threads)
    return out


def dequantize_rows(blocks: Blocks, qtype: str, row_values: int, *, threads: int = 1) -> Weights:
    """Unpack rows to float32.

    Args: blocks: (rows, row_bytes) uint8.
    Returns: (rows, row_values) float32.
    Raises: ValueError: a row's bytes do not match `row_values` weights.
    """
    traits = type_traits(qtype)
    if blocks.ndim != 2 or blocks.dtype != np.uint8:
        raise ValueError(f"expected uint8 rows, found {blocks.dtype} of {blocks.ndim} dimensions")
    rows, width = blocks.shape
    if width != traits.row_bytes(row_values):
        raise ValueError(f"a row of {row_values} {qtype} has {traits.row_bytes(row_values)} bytes, not {width}")
    source = np.ascontiguousarray(blocks)
    if qtype == "F32":
        return source.view(np.float32).copy()
    out = np.empty((rows, row_values), np.float32)
    if rows == 0:
        return out
    to_float = _raw_traits(traits.type_id).to_float
    if not to_float:
        raise ValueError(f"ggml cannot expand {qtype}")
    step = max(1, _CHUNK_VALUES // row_values)

    def run(first: int) -> None:
        count = min(step, rows - first)
        to_float(source[first:].ctypes.data, out[first:].ctypes.data, count * row_values)

    _share_out(run, range(0, rows, step), threads)
    return out


def _raw_traits(type_id: int) -> Any:
    get = ggml_base().ggml_get_type_traits
    get.restype = ctypes.POINTER(_TypeTraits)
    get.argtypes = [ctypes.c_int]
    return get(type_id).contents


def _share_out(run: Any, starts: range, threads: int) -> None:
    """Call `run` for each start; ggml releases the interpreter lock, so threads are enough."""
    if threads <= 1 or len(starts) == 1:
        for first in starts:
            run(first)
        return
    with ThreadPoolExecutor(max_workers=min(threads, len(starts))) as pool:
        for _ in pool.map(run, starts):
            pass

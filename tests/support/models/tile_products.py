"""Random matrix products by Tessera's prompt kernels, compared with numpy, in a separate process.

    python -m tests.support.models.tile_products

Reads one JSON case per line (see `Case`), prints one JSON object per line. A loaded backend stays in the process,
so tests run this as a child process.
"""

import ctypes
import functools
import sys
from typing import Any

import gguf
import msgspec
import numpy as np
from gguf import GGMLQuantizationType

from devices.backends.cpu_kernels import take, tiles_library
from engine.runner.llama.native.llama_api import ggml, library_folder, load_api

TWO_HALVES = frozenset({"Q4_1", "Q5_1", "Q4_K", "Q5_K"})  # blocks that start with two 16-bit numbers
SCALE_AT = {"Q3_K": 108, "Q6_K": 208}  # scale's offset in a block; 0 for other types
EXPERTS, CHOSEN = 6, 3
LARGEST_ERROR = 1e-6  # of the largest result: sums have 32 bits
LARGE = (2.0**14, 2.0**24)  # with these factors sums of blocks, and then scales too, are too large for 16 bits


class InitParams(ctypes.Structure):
    """Source: ggml.h, ggml_init_params."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One product of `kind` weights (rows, length) and columns (count, length).

    `copy`: the weights have llama.cpp's repacked layout. `experts`: they are a mixture's, and each column is a
    token that chooses some of them.
    """

    kind: str
    rows: int
    length: int
    count: int
    copy: bool = False
    experts: bool = False


@functools.cache
def opened() -> tuple[Any, Any]:
    """Ggml's functions and the device of Tessera's backend."""
    lib = ggml(load_api())
    for name in (
        "backend_load", "backend_reg_dev_get", "backend_dev_init", "init", "new_tensor_2d",
        "new_tensor_3d", "view_2d", "mul_mat", "mul_mat_id", "new_graph",
        "backend_alloc_ctx_tensors", "backend_reg_get_proc_address", "backend_dev_backend_reg",
    ):  # fmt: skip
        getattr(lib, f"ggml_{name}").restype = ctypes.c_void_p
    lib.ggml_backend_dev_supports_op.restype = ctypes.c_bool
    path = tiles_library(library_folder())
    assert path is not None
    registry = ctypes.c_void_p(lib.ggml_backend_load(str(path).encode()))
    return lib, ctypes.c_void_p(lib.ggml_backend_reg_dev_get(registry, ctypes.c_size_t(0)))


@functools.cache
def rewriting_buffers(lib: Any) -> Any:
    """The buffer type in which llama.cpp repacks weights."""
    lib.ggml_backend_load.restype = ctypes.c_void_p
    cpu = ctypes.c_void_p(lib.ggml_backend_load(str(library_folder() / "libggml-cpu.so").encode()))
    address = lib.ggml_backend_reg_get_proc_address(cpu, b"ggml_backend_dev_get_extra_bufts")
    device = ctypes.c_void_p(lib.ggml_backend_reg_dev_get(cpu, ctypes.c_size_t(0)))
    found = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
    lib.ggml_backend_buft_name.restype = ctypes.c_char_p
    for buffer_type in found:
        if buffer_type is None:
            break
        if lib.ggml_backend_buft_name(ctypes.c_void_p(buffer_type)) == b"CPU_REPACK":
            return ctypes.c_void_p(buffer_type)
    raise SystemExit("llama.cpp rewrites no weights here")


def random_blocks(rng: np.random.Generator, kind: GGMLQuantizationType, rows: int, length: int) -> np.ndarray:
    """(rows, bytes) of blocks with scales around 0.01 and offsets around 0."""
    size, width = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * length // size, width), dtype=np.uint8)
    scales = rng.uniform(0.005, 0.02, len(blocks)).astype(np.float16)
    at = SCALE_AT.get(kind.name, 0)
    blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind == GGMLQuantizationType.MXFP4:  # its scales are exponents
        blocks[:, 0] = rng.integers(118, 122, len(blocks))
    if kind.name in TWO_HALVES:
        blocks[:, 2:4] = rng.uniform(-0.1, 0.1, len(blocks)).astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


class Product:
    """One product of weights (rows, length) with columns (count, length) as a ggml graph."""

    def __init__(
        self, lib: Any, device: Any, weights: np.ndarray, kind: GGMLQuantizationType, count: int, *, copy: bool
    ) -> None:
        self._lib, self._device = lib, device
        values, width = gguf.GGML_QUANT_SIZES[kind]
        rows, self._length, self._count = len(weights), weights.shape[1] * values // width, count
        context = ctypes.c_void_p(lib.ggml_init(InitParams(1 << 20, None, True)))
        new = lib.ggml_new_tensor_2d
        sizes = (ctypes.c_int64(self._length), ctypes.c_int64(rows))
        apart = ctypes.c_void_p(lib.ggml_init(InitParams(1 << 20, None, True))) if copy else context
        left = ctypes.c_void_p(new(apart, ctypes.c_int(kind), *sizes))
        if copy:
            lib.ggml_backend_alloc_ctx_tensors_from_buft(apart, rewriting_buffers(lib))
        self._right = ctypes.c_void_p(new(context, ctypes.c_int(0), sizes[0], ctypes.c_int64(count)))
        self._out = ctypes.c_void_p(lib.ggml_mul_mat(context, left, self._right))
        self._graph = ctypes.c_void_p(lib.ggml_new_graph(context))
        lib.ggml_build_forward_expand(self._graph, self._out)
        self._backend = ctypes.c_void_p(lib.ggml_backend_dev_init(device, None))
        self._result = np.empty((count, rows), np.float32)
        lib.ggml_backend_alloc_ctx_tensors(context, self._backend)
        self._set(left, weights)

    def _set(self, tensor: Any, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values)
        size = ctypes.c_size_t(data.nbytes)
        self._lib.ggml_backend_tensor_set(tensor, ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(0), size)

    @property
    def is_taken(self) -> bool:
        """Whether the backend supports the operation."""
        return bool(self._lib.ggml_backend_dev_supports_op(self._device, self._out))

    def by(self, columns: np.ndarray, threads: int) -> np.ndarray:
        """Compute the product (count, rows)."""
        registry = ctypes.c_void_p(self._lib.ggml_backend_dev_backend_reg(self._device))
        address = self._lib.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_set_n_threads")
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(address)(self._backend, threads)
        self._set(self._right, columns.astype(np.float32))
        assert self._lib.ggml_backend_graph_compute(self._backend, self._graph) == 0
        place, size = ctypes.c_void_p(self._result.ctypes.data), ctypes.c_size_t(self._result.nbytes)
        self._lib.ggml_backend_tensor_get(self._out, place, ctypes.c_size_t(0), size)
        return self._result.copy()


class Mixture(Product):
    """One product of a mixture: weights (experts * rows, length), columns (tokens, 1 or CHOSEN, length)."""

    def __init__(
        self, lib: Any, device: Any, weights: np.ndarray, kind: GGMLQuantizationType, chosen: np.ndarray, *,
        each: int, copy: bool,
    ) -> None:  # fmt: skip
        self._lib, self._device, tokens = lib, device, len(chosen)
        values, width = gguf.GGML_QUANT_SIZES[kind]
        rows, length = len(weights) // EXPERTS, ctypes.c_int64(weights.shape[1] * values // width)
        context = ctypes.c_void_p(lib.ggml_init(InitParams(1 << 20, None, True)))
        apart = ctypes.c_void_p(lib.ggml_init(InitParams(1 << 20, None, True))) if copy else context
        new, count = lib.ggml_new_tensor_3d, ctypes.c_int64(tokens)
        left = ctypes.c_void_p(
            new(apart, ctypes.c_int(kind), length, ctypes.c_int64(rows), ctypes.c_int64(EXPERTS))
        )
        if copy:
            lib.ggml_backend_alloc_ctx_tensors_from_buft(apart, rewriting_buffers(lib))
        self._right = ctypes.c_void_p(new(context, ctypes.c_int(0), length, ctypes.c_int64(each), count))
        # llama.cpp's choice is the prefix of each row of sorted experts.
        whole = ctypes.c_void_p(lib.ggml_new_tensor_2d(context, ctypes.c_int(26), ctypes.c_int64(EXPERTS), count))
        ids = ctypes.c_void_p(
            lib.ggml_view_2d(
                context, whole, ctypes.c_int64(CHOSEN), count, ctypes.c_size_t(4 * EXPERTS), ctypes.c_size_t(0)
            )
        )
        self._out = ctypes.c_void_p(lib.ggml_mul_mat_id(context, left, self._right, ids))
        self._graph = ctypes.c_void_p(lib.ggml_new_graph(context))
        lib.ggml_build_forward_expand(self._graph, self._out)
        self._backend = ctypes.c_void_p(lib.ggml_backend_dev_init(device, None))
        self._result = np.empty((tokens, CHOSEN, rows), np.float32)
        lib.ggml_backend_alloc_ctx_tensors(context, self._backend)
        self._set(left, weights)
        self._set(whole, chosen.astype(np.int32))


def mixture_report(kind: GGMLQuantizationType, rows: int, length: int, count: int, *, copy: bool) -> dict[str, Any]:
    """Compare products of a mixture with numpy's, of one column for all experts of a token and of one for each.

    The last expert is chosen by no token, the one before by one.
    """
    lib, device = opened()
    path = tiles_library(library_folder())
    assert path is not None
    rng = np.random.default_rng(rows)
    weights = random_blocks(rng, kind, EXPERTS * rows, length)
    chosen = np.argsort(rng.random((count, EXPERTS - 2)))
    chosen = np.hstack([chosen, np.full((count, 2), EXPERTS - 1)])
    chosen[4, 1] = EXPERTS - 2
    floats = gguf.quants.dequantize(weights, kind).reshape(EXPERTS, rows, length).astype(np.float64)
    found: dict[str, Any] = {"error": 0.0, "same_by_threads": True, "same_beside_fewer": True}
    for each in (1, CHOSEN):
        columns = rng.standard_normal((count, each, length)).astype(np.float32)
        product = Mixture(lib, device, weights, kind, chosen, each=each, copy=copy)
        found["untold"] = product.is_taken
        if not take(path, [kind]):
            return {"known": False, "untold": found["untold"]}
        found |= {"known": True, "taken": product.is_taken}
        few = Mixture(lib, device, weights, kind, chosen[:1], each=each, copy=copy)
        found["few"] = few.is_taken
        result = product.by(columns, 1)
        rounded = np.broadcast_to(in_8_bits(columns), (count, CHOSEN, length))
        expected = np.einsum("tcrl,tcl->tcr", floats[chosen[:, :CHOSEN]], rounded)
        found["error"] = max(found["error"], error_of(result, expected))
        found["same_by_threads"] &= bool(np.array_equal(result, product.by(columns, 3)))
        fewer = Mixture(lib, device, weights, kind, chosen[3:], each=each, copy=copy).by(columns[3:], 2)
        found["same_beside_fewer"] &= bool(np.array_equal(result[3:], fewer))
        take(path, [])
    return found


def in_8_bits(columns: np.ndarray) -> np.ndarray:
    """Columns rounded like the kernels do: blocks of 32, the largest magnitude becomes 127."""
    blocks = columns.reshape(-1, 32).astype(np.float32)
    most = np.abs(blocks).max(axis=1, keepdims=True)
    scale = most / np.float32(127)
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
    scale = np.where(np.isinf(half), scale, half).astype(np.float64)
    whole = np.rint(blocks * (np.float32(127) / most))
    return (whole * scale).reshape(columns.shape)


def error_of(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest error as a share of the largest result."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def report(kind: GGMLQuantizationType, rows: int, length: int, count: int, *, copy: bool) -> dict[str, Any]:
    """Compare the kernels' product with numpy's, and with their own under other conditions."""
    lib, device = opened()
    path = tiles_library(library_folder())
    assert path is not None
    rng = np.random.default_rng(rows)
    weights = random_blocks(rng, kind, rows, length)
    columns = rng.standard_normal((count, length)).astype(np.float32)
    product = Product(lib, device, weights, kind, count, copy=copy)
    before = product.is_taken
    known = take(path, [kind])
    if not known:
        return {"known": False, "untold": before}
    if not product.is_taken:
        return {"known": True, "untold": before, "taken": False}
    found = product.by(columns, 1)
    floats = gguf.quants.dequantize(weights, kind).astype(np.float64).T
    fewer = Product(lib, device, weights, kind, count - 3, copy=copy).by(columns[3:], 1)
    broken = columns.copy()
    broken[1, length // 2] = np.nan
    broken[2, 0] = np.inf
    numbers = np.isfinite(product.by(broken, 2)).all(axis=1)
    return {
        "known": True,
        "untold": before,
        "taken": True,
        "few": Product(lib, device, weights, kind, 3, copy=copy).is_taken,
        "error": error_of(found, in_8_bits(columns) @ floats),
        "right_if_large": all(
            error_of(product.by(columns * by, 1), in_8_bits(columns * by) @ floats) < LARGEST_ERROR for by in LARGE
        ),
        "same_by_threads": bool(np.array_equal(found, product.by(columns, 3))),
        "same_beside_fewer": bool(np.array_equal(found[3:], fewer)),
        "not_numbers": np.flatnonzero(~numbers).tolist(),
    }


def compared(case: Case) -> dict[str, Any]:
    """Compare one case; afterwards no type is enabled, as at the start."""
    path = tiles_library(library_folder())
    assert path is not None
    compare = mixture_report if case.experts else report
    try:
        return compare(GGMLQuantizationType[case.kind], case.rows, case.length, case.count, copy=case.copy)
    finally:
        take(path, [])


if __name__ == "__main__":
    for line in sys.stdin:
        print(msgspec.json.encode(compared(msgspec.json.decode(line, type=Case))).decode(), flush=True)

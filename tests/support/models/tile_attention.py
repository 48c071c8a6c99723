"""Random attention by Tessera's CPU kernels, compared with numpy, in a separate process.

    python -m tests.support.models.tile_attention

Reads one JSON case per line (see `Case`), prints one JSON object per line. A loaded backend stays in the process,
so tests run this as a child process.
"""

import ctypes
import sys
from typing import Any

import gguf
import msgspec
import numpy as np
from gguf import GGMLQuantizationType

from devices.backends.cpu_kernels import take, tiles_library
from engine.runner.llama.native.llama_api import library_folder
from tests.support.models.tile_products import InitParams, opened

F32, F16 = GGMLQuantizationType.F32, GGMLQuantizationType.F16


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One attention; `seen` is the mask (causal, everything, own: rows of several texts, window)."""

    positions: int
    cells: int
    heads: int = 6
    key_heads: int = 2
    width: int = 64
    value_width: int = 0
    streams: int = 1
    key_type: str = "F16"
    value_type: str = "F16"
    seen: str = "causal"
    softcap: float = 0.0
    bias: float = 0.0
    sinks: bool = False


def mask_of(case: Case) -> np.ndarray:
    """Mask (positions, cells): 0 for a visible cell, the negative distance with a bias, else minus infinity."""
    position = np.arange(case.positions)[:, None] + case.cells - case.positions
    cell = np.arange(case.cells)[None, :]
    distance = position - cell
    if case.seen == "everything":
        sees = np.ones_like(distance, bool)
    elif case.seen == "own":  # each position ends a separate text, whose cells are interleaved
        sees = cell % case.positions == np.arange(case.positions)[:, None]
    elif case.seen == "window":
        sees = (distance >= 0) & (distance < 20)
    else:
        sees = distance >= 0
    return np.where(sees, -np.abs(distance) if case.bias else 0, -np.inf).astype(np.float16)


class Attention:
    """One attention operation as a ggml graph; `by` computes it."""

    def __init__(self, lib: Any, device: Any, case: Case) -> None:
        self._lib, self._device, self._case = lib, device, case
        rng = np.random.default_rng(case.cells + case.positions)
        wide = case.value_width or case.width
        self.q = 2 * rng.standard_normal((case.streams, case.heads, case.positions, case.width)).astype(np.float32)
        self.k = rng.standard_normal((case.streams, case.key_heads, case.cells, case.width)).astype(np.float32)
        self.v = rng.standard_normal((case.streams, case.key_heads, case.cells, wide)).astype(np.float32)
        self.mask = mask_of(case)
        self.sinks = rng.standard_normal(case.heads).astype(np.float32)
        context = ctypes.c_void_p(lib.ggml_init(InitParams(1 << 20, None, True)))
        key_type, value_type = GGMLQuantizationType[case.key_type], GGMLQuantizationType[case.value_type]
        self._tensors = [
            self._tensor(context, F32, self.q),
            self._tensor(context, key_type, self.k),
            self._tensor(context, value_type, self.v),
            self._tensor(context, F16, self.mask[None, None]),
        ]
        lib.ggml_flash_attn_ext.restype = ctypes.c_void_p
        numbers = (ctypes.c_float(x) for x in (case.width**-0.5, case.bias, case.softcap))
        self._out = ctypes.c_void_p(lib.ggml_flash_attn_ext(context, *self._tensors, *numbers))
        if case.sinks:
            sinks = self._tensor(context, F32, self.sinks[None, None, None])
            lib.ggml_flash_attn_ext_add_sinks(self._out, sinks)
        self._graph = ctypes.c_void_p(lib.ggml_new_graph(context))
        lib.ggml_build_forward_expand(self._graph, self._out)
        self._backend = ctypes.c_void_p(lib.ggml_backend_dev_init(device, None))
        lib.ggml_backend_alloc_ctx_tensors(context, self._backend)
        self.q_tensor, self.k_tensor, self.v_tensor, self.mask_tensor = self._tensors
        self.fill()
        if case.sinks:
            self._set(sinks, self.sinks, F32)

    def fill(self) -> None:
        """Copy this object's values into ggml's tensors; `kept_k` and `kept_v` are rounded to their type."""
        self._set(self.q_tensor, self.q, F32)
        self.kept_k = self._set(self.k_tensor, self.k, GGMLQuantizationType[self._case.key_type])
        self.kept_v = self._set(self.v_tensor, self.v, GGMLQuantizationType[self._case.value_type])
        self._set(self.mask_tensor, self.mask, F16)

    def _tensor(self, context: Any, kind: GGMLQuantizationType, like: np.ndarray) -> Any:
        self._lib.ggml_new_tensor_4d.restype = ctypes.c_void_p
        sizes = (ctypes.c_int64(n) for n in reversed(like.shape))
        return ctypes.c_void_p(self._lib.ggml_new_tensor_4d(context, ctypes.c_int(kind), *sizes))

    def _set(self, tensor: Any, values: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
        data = gguf.quants.quantize(np.ascontiguousarray(values, np.float32), kind)
        data = np.ascontiguousarray(data)
        size = ctypes.c_size_t(data.nbytes)
        self._lib.ggml_backend_tensor_set(tensor, ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(0), size)
        return np.asarray(gguf.quants.dequantize(data, kind), np.float64)

    @property
    def is_taken(self) -> bool:
        """Whether the backend supports the operation."""
        return bool(self._lib.ggml_backend_dev_supports_op(self._device, self._out))

    def by(self, threads: int) -> np.ndarray:
        """Compute it; returns (streams, positions, heads, value width)."""
        case = self._case
        registry = ctypes.c_void_p(self._lib.ggml_backend_dev_backend_reg(self._device))
        address = self._lib.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_set_n_threads")
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(address)(self._backend, threads)
        assert self._lib.ggml_backend_graph_compute(self._backend, self._graph) == 0
        found = np.empty((case.streams, case.positions, case.heads, self.v.shape[-1]), np.float32)
        place, size = ctypes.c_void_p(found.ctypes.data), ctypes.c_size_t(found.nbytes)
        self._lib.ggml_backend_tensor_get(self._out, place, ctypes.c_size_t(0), size)
        return found

    def expected(self) -> np.ndarray:
        """The result by numpy in 64 bits."""
        case, group = self._case, self._case.heads // self._case.key_heads
        keys, values = (np.repeat(x, group, axis=1) for x in (self.kept_k, self.kept_v))
        scores = np.einsum("shpd,shcd->shpc", self.q.astype(np.float64), keys) * case.width**-0.5
        if case.softcap:
            scores = case.softcap * np.tanh(scores / case.softcap)
        slopes = np.ones(case.heads)
        if case.bias:
            assert case.heads.bit_count() == 1
            slopes = 2.0 ** (-case.bias / case.heads * np.arange(1, case.heads + 1))
        with np.errstate(invalid="ignore"):
            scores = scores + slopes[None, :, None, None] * self.mask.astype(np.float64)[None, None]
        sinks = self.sinks.astype(np.float64)[None, :, None, None] if case.sinks else np.array(-1e300)
        most = np.maximum(scores.max(axis=-1, keepdims=True), sinks)
        parts = np.exp(scores - most)
        total = parts.sum(axis=-1, keepdims=True) + np.exp(sinks - most)
        total = np.where(total == 0, 1, total)
        return np.einsum("shpc,shcd->sphd", parts / total, values)


def report(lib: Any, device: Any, case: Case) -> dict[str, Any]:
    """Compare the kernels' attention with numpy's, and with their own under other conditions."""
    path = tiles_library(library_folder())
    assert path is not None
    attention = Attention(lib, device, case)
    take(path, ())
    untold = attention.is_taken
    take(path, (), attention=True)
    if not attention.is_taken:
        return {"taken": False}
    found = attention.by(1)
    same = all(np.array_equal(found, attention.by(threads)) for threads in (2, 3))
    error = float(np.abs(found - attention.expected()).max())
    hidden = np.isneginf(attention.mask).all(axis=0)
    attention.k[:, :, hidden] = attention.v[:, :, hidden] = np.nan
    if case.key_type == case.value_type == "F16":
        attention.fill()
    kept = np.array_equal(found, attention.by(2))
    number, attention.q[0, -1, 0, 3] = attention.q[0, -1, 0, 3], np.nan  # first position, last head
    attention.fill()
    broken = np.isnan(attention.by(1)).any(axis=-1)
    only = bool(broken[0, 0, -1]) and int(broken.sum()) == 1
    attention.q[0, -1, 0, 3] = number
    attention.mask[0] = -np.inf
    attention.fill()
    nothing = attention.by(2)[:, 0]
    return {
        "taken": True,
        "untold": untold,
        "error": error,
        "same_by_threads": same,
        "hidden_cells_are_not_read": kept,
        "what_is_no_number_stays_in_its_row": only,
        "nothing_seen_gives_zeros": bool((nothing == 0).all()),
    }


if __name__ == "__main__":
    library, tiles = opened()
    for line in sys.stdin:
        print(
            msgspec.json.encode(report(library, tiles, msgspec.json.decode(line, type=Case))).decode(), flush=True
        )

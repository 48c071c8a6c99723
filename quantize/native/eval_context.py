"""An evaluation context of a loaded model; several contexts can run in parallel on the same weights."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from devices.errors import EnvironmentFault
from quantize.ggml_types import GgmlType
from quantize.native.graph import NodeHook, tensor_at
from quantize.native.libraries import last_errors, llama

Tokens = npt.NDArray[np.int32]
_FLASH_ATTENTION_ON = 1  # Source: llama.h, enum llama_flash_attn_type
Logits = npt.NDArray[np.float32]


class LoadFailed(EnvironmentFault):
    """llama.cpp could not load or evaluate the file, or create a context.

    Holds `path`, the failed step and the `reason` that llama.cpp gave, if it gave one.
    """

    code = "model_failed"

    def __init__(self, path: str, step: str) -> None:
        reason = next((message for message in reversed(last_errors()) if "error" in message), "")
        super().__init__(f"llama.cpp could not {step}: {path}{f' ({reason})' if reason else ''}")
        self.path = path
        self.step = step
        self.reason = reason


class EvalContext:
    """A context for `batch_windows` sequences of `window` tokens each, used by one thread at a time.

    `kv_types` are the KV cache types of K and V; None: llama.cpp's default.

    Raises: LoadFailed.
    """

    def __init__(
        self,
        model: Any,
        path: str,
        *,
        window: int,
        batch_windows: int,
        threads: int,
        num_vocab: int,
        kv_types: tuple[str, str] | None = None,
    ) -> None:
        self.window = window
        self.batch_windows = batch_windows
        self.num_vocab = num_vocab
        self._lib = llama()
        self._path = path
        self._tap: NodeHook | None = None
        self._tap_error: BaseException | None = None
        params = self._lib.llama_context_default_params()
        params.n_ctx = window * batch_windows
        params.n_batch = window * batch_windows
        params.n_ubatch = min(512, window * batch_windows)
        params.n_seq_max = batch_windows
        params.n_threads = threads
        params.n_threads_batch = threads
        params.no_perf = True
        if kv_types is not None:
            # Only the flash-attention kernel reads a quantized V; the float reference uses the same kernel.
            params.type_k, params.type_v = (GgmlType[t.upper()] for t in kv_types)
            params.flash_attn_type = _FLASH_ATTENTION_ON
        self._callback = self._lib.ggml_backend_sched_eval_callback(self._on_node)
        params.cb_eval = self._callback
        self._context = self._lib.llama_init_from_model(model, params)
        if not self._context:
            raise LoadFailed(path, "make a context")

    def close(self) -> None:
        if self._context is not None:
            self._lib.llama_free(self._context)
            self._context = None

    def run(
        self,
        windows: Tokens,
        keep: npt.NDArray[np.bool_] | None = None,
        tap: NodeHook | None = None,
        *,
        drop_logits: bool = False,
    ) -> Logits:
        """Evaluate windows in parallel, each from an empty cache.

        Args: windows: (count, window) with count ≤ `batch_windows`. keep: (window,) positions whose logits are
        returned; None: none of them (one is computed and dropped). drop_logits: compute them only for `tap`.
        Returns: (count, kept, num_vocab) float32, a copy.
        Raises: LoadFailed: evaluation failed. Any error of `tap`.
        """
        count, length = windows.shape
        if length > self.window or count > self.batch_windows:
            raise ValueError(f"{count} windows of {length} tokens, room for {self.batch_windows} of {self.window}")
        if windows.size and (windows.min() < 0 or windows.max() >= self.num_vocab):
            raise ValueError("token id outside the vocabulary")
        flags = np.zeros(length, np.int8) if keep is None else keep.astype(np.int8)
        if keep is None:
            flags[-1] = 1
        total = count * length
        tokens = np.ascontiguousarray(windows, np.int32).reshape(-1)
        positions = np.tile(np.arange(length, dtype=np.int32), count)
        outputs = np.tile(flags, count)
        one = np.ones(total, np.int32)
        ids = np.repeat(np.arange(count, dtype=np.int32), length)
        pointers = (ctypes.POINTER(ctypes.c_int32) * total)()
        for i in range(total):
            pointers[i] = ctypes.cast(ids.ctypes.data + 4 * i, ctypes.POINTER(ctypes.c_int32))
        batch = self._lib.llama_batch(
            total,
            tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            None,
            positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            one.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), False)
        self._tap, self._tap_error = tap, None
        try:
            status = self._lib.llama_decode(self._context, batch)
        finally:
            self._tap = None
            if tap is not None:
                tap.ended()
        if self._tap_error is not None:
            raise self._tap_error
        if status != 0:
            raise LoadFailed(self._path, f"evaluate the model (status {status})")
        num_rows = int(flags.sum())
        if keep is None or drop_logits:
            return np.empty((count, 0, self.num_vocab), np.float32)
        data = self._lib.llama_get_logits(self._context)
        flat = np.ctypeslib.as_array(data, (count * num_rows, self.num_vocab))
        return flat.reshape(count, num_rows, self.num_vocab).copy()

    def _on_node(self, address: int, ask: bool, user_data: object) -> bool:
        """Called by the scheduler for every node. C code would drop an exception, so it is stored for `run`."""
        del user_data
        try:
            if self._tap is None or self._tap_error is not None:
                return not ask
            node = tensor_at(address)
            return self._tap.asks(address, node) if ask else self._tap.takes(address, node)
        except BaseException as error:  # noqa: BLE001  raised again by `run`; C code cannot propagate it
            self._tap_error = error
            return not ask

"""A model loaded by llama.cpp whose insides can be watched and whose weights can be swapped in place."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from quantize.native.graph import GgmlTensor, name_of, op_id, read_bytes, tensor_at, write_bytes
from quantize.native.libraries import llama

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]


class LoadFailed(Exception):
    """llama.cpp would not load the file or make a context for it; `path` and the step that failed."""

    def __init__(self, path: str, step: str) -> None:
        super().__init__(f"llama.cpp could not {step}: {path}")
        self.path = path
        self.step = step


class NodeTap:
    """What to do with the nodes of a running graph. Subclass, and pass to `ReferenceModel.run`."""

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Whether the values of a node are needed. Called for every node, before it is computed."""
        raise NotImplementedError

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Read a node that was asked for, just computed. False ends this graph here."""
        raise NotImplementedError


class Tap(NodeTap):
    """Watches the inputs of multiplications with named weights."""

    def wants(self, weight: str, node: GgmlTensor) -> bool:
        """Whether the values of this multiplication's input are needed. Called before it is computed."""
        raise NotImplementedError

    def take(self, weight: str, node: GgmlTensor) -> None:
        """Read the input of a wanted multiplication. Called after it was computed."""
        raise NotImplementedError

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Pass multiplications on to `wants`."""
        del address
        weight = multiplied_weight(node)
        return weight is not None and self.wants(weight, node)

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Pass multiplications on to `take`."""
        del address
        weight = multiplied_weight(node)
        assert weight is not None
        self.take(weight, node)
        return True


def multiplied_weight(node: GgmlTensor) -> str | None:
    """The name of the weight a node multiplies by; None if it is no multiplication."""
    if node.op not in (op_id("MUL_MAT"), op_id("MUL_MAT_ID")) or not node.src[0]:
        return None
    return name_of(tensor_at(node.src[0]))


class ReferenceModel:
    """One loaded model and one context of `batch_windows` sequences of `window` tokens each.

    Use in a child process: llama.cpp may end the process on a file it dislikes.
    Raises: LoadFailed.
    """

    def __init__(
        self, path: Path, *, window: int, batch_windows: int = 4, threads: int, gpu_layers: int = 0
    ) -> None:
        self.window = window
        self.batch_windows = batch_windows
        self._lib = llama()
        self._path = path
        self._tap: NodeTap | None = None
        self._tap_error: BaseException | None = None
        self._weights: dict[str, int] = {}
        params = self._lib.llama_model_default_params()
        # In memory of our own, in ggml's plain layout: so that weights may be overwritten.
        params.load_mode = self._lib.LLAMA_LOAD_MODE_NONE
        params.use_extra_bufts = False
        params.n_gpu_layers = gpu_layers
        self._model = self._lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise LoadFailed(str(path), "load the model")
        self._vocab = self._lib.llama_model_get_vocab(self._model)
        self.num_vocab = int(self._lib.llama_vocab_n_tokens(self._vocab))
        self._context = self._make_context(window, batch_windows, threads)
        self._probe_weights()

    def _make_context(self, window: int, batch_windows: int, threads: int) -> Any:
        params = self._lib.llama_context_default_params()
        params.n_ctx = window * batch_windows
        params.n_batch = window * batch_windows
        params.n_ubatch = min(512, window * batch_windows)
        params.n_seq_max = batch_windows
        params.n_threads = threads
        params.n_threads_batch = threads
        params.no_perf = True
        self._callback = self._lib.ggml_backend_sched_eval_callback(self._on_node)
        params.cb_eval = self._callback
        context = self._lib.llama_init_from_model(self._model, params)
        if not context:
            self._lib.llama_model_free(self._model)
            raise LoadFailed(str(self._path), "make a context")
        return context

    def close(self) -> None:
        """Free the context and the model."""
        if self._context is not None:
            self._lib.llama_free(self._context)
            self._lib.llama_model_free(self._model)
            self._context = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def tokenize(self, text: str, *, parse_special: bool = True) -> Tokens:
        """Token ids of a text, without a BOS; `parse_special`: tokens like <|im_end|> in it count as such."""
        raw = text.encode()
        size = len(raw) + 8
        out = (ctypes.c_int32 * size)()
        count = self._lib.llama_tokenize(self._vocab, raw, len(raw), out, size, False, parse_special)
        if count < 0:
            raise LoadFailed(str(self._path), "tokenize the text")
        return np.array(out[:count], np.int32)

    @property
    def bos(self) -> int | None:
        """The token this model wants at the start of a text, if it wants one."""
        if not self._lib.llama_vocab_get_add_bos(self._vocab):
            return None
        token = int(self._lib.llama_vocab_bos(self._vocab))
        return token if token >= 0 else None

    def run(
        self,
        windows: Tokens,
        keep: npt.NDArray[np.bool_] | None = None,
        tap: NodeTap | None = None,
        *,
        drop_logits: bool = False,
    ) -> Logits:
        """Evaluate windows side by side, each from an empty cache.

        Args: windows: (count, window) with count ≤ `batch_windows`. keep: (window,) positions whose logits are
        wanted; None: none of them (one is computed and dropped). drop_logits: compute them only for `tap` to see.
        Returns: (count, kept, num_vocab) float32, a copy.
        Raises: LoadFailed: evaluation failed. Whatever `tap` raised.
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
        if self._tap_error is not None:
            raise self._tap_error
        if status != 0:
            raise LoadFailed(str(self._path), f"evaluate the model (status {status})")
        kept = int(flags.sum())
        if keep is None or drop_logits:
            return np.empty((count, 0, self.num_vocab), np.float32)
        data = self._lib.llama_get_logits(self._context)
        flat = np.ctypeslib.as_array(data, (count * kept, self.num_vocab))
        return flat.reshape(count, kept, self.num_vocab).copy()

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights that take part in multiplications or lookups, in the order of use."""
        return tuple(self._weights)

    def weight_type(self, name: str) -> int:
        """The ggml type id of a loaded weight."""
        return int(tensor_at(self._weights[name]).type)

    @contextmanager
    def swapped(self, values: dict[str, npt.NDArray[np.uint8]]) -> Iterator[None]:
        """Weights replaced by other bytes of their own type for the time of the `with`; then exactly as before."""
        saved: dict[str, npt.NDArray[np.uint8]] = {}
        try:
            for name, data in values.items():
                tensor = tensor_at(self._weights[name])
                saved[name] = read_bytes(tensor)
                write_bytes(tensor, data)
            yield
        finally:
            for name, data in saved.items():
                write_bytes(tensor_at(self._weights[name]), data)

    def replace(self, name: str, values: npt.NDArray[np.uint8]) -> None:
        """Overwrite one weight for good with other bytes of its own type."""
        write_bytes(tensor_at(self._weights[name]), values)

    def _probe_weights(self) -> None:
        """Run one token to learn where the weights are."""
        self._learning = True
        self.run(np.zeros((1, 1), np.int32))
        self._learning = False

    def _on_node(self, address: int, ask: bool, user_data: object) -> bool:
        """Called by the scheduler for every node; an exception here would be swallowed, so it is kept."""
        del user_data
        try:
            if self._learning:
                return self._learn(address) if ask else True
            if self._tap is None or self._tap_error is not None:
                return not ask
            node = tensor_at(address)
            return self._tap.asks(address, node) if ask else self._tap.takes(address, node)
        except BaseException as error:  # noqa: BLE001  raised again by `run`; C code cannot carry it
            self._tap_error = error
            return not ask

    def _learn(self, address: int) -> bool:
        node = tensor_at(address)
        if node.op in (op_id("MUL_MAT"), op_id("MUL_MAT_ID"), op_id("GET_ROWS")) and node.src[0]:
            source = tensor_at(node.src[0])
            name = source.name.decode(errors="replace")
            if name.endswith(".weight"):
                self._weights.setdefault(name, int(node.src[0]))
        return False

"""A model loaded by llama.cpp, with hooks into its graph and weights that can be swapped in place."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.files.byte_source import FileSource
from quantize.files.gguf_split import read_gguf_model
from quantize.measurements import Step
from quantize.native.eval_context import EvalContext, LoadFailed, Logits, Tokens
from quantize.native.graph import GgmlTensor, NodeHook, op_id, read_bytes, tensor_at, write_bytes
from quantize.native.libraries import llama, llama_identity
from quantize.native.split_points import Cuts, GraphTap, find_cuts

P = TypeVar("P")
T = TypeVar("T")

# Memory limit for all parallel contexts together. Each has one thread, so that no context waits for another.
# Measured: log-archive.md, "GPTQ rounding" ("Lanes").
_CONTEXTS_BYTES = 2 << 30
_LOGIT_BYTES = 8  # per token and vocabulary entry: one float in ggml's buffer and one in the copy


class LoadCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Check that llama.cpp accepts the model in `path`."""

    path: Path


def check_loads(request: LoadCheck, send: Step) -> int:
    """Load a model as llama.cpp does, but without its weights: names, shapes and types must be complete.

    Raises: LoadFailed.
    """
    lib = llama()
    params = lib.llama_model_default_params()
    params.load_mode = lib.LLAMA_LOAD_MODE_NONE
    params.no_alloc = True
    params.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(str(request.path).encode(), params)
    if not model:
        raise LoadFailed(str(request.path), "load the model")
    lib.llama_model_free(model)
    send(1, 1, "")
    return 1


class ReferenceModel:
    """A loaded model with as many contexts as run well in parallel.

    Use it in a child process: llama.cpp may end the process on an invalid file.

    Args: max_contexts: an upper limit for `num_contexts`, if each one needs separate memory.
    Raises: LoadFailed.
    """

    def __init__(
        self,
        path: Path,
        *,
        window: int,
        batch_windows: int = 1,
        threads: int,
        gpu_layers: int = 0,
        max_contexts: int | None = None,
    ) -> None:
        self._lib = llama()
        self._path = path
        self._contexts: list[EvalContext] = []
        self._gpu_layers = gpu_layers
        params = self._lib.llama_model_default_params()
        # Load into allocated memory in ggml's plain layout, so that weights can be overwritten.
        params.load_mode = self._lib.LLAMA_LOAD_MODE_NONE
        params.use_extra_bufts = False
        params.n_gpu_layers = gpu_layers
        self._model = self._lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise LoadFailed(str(path), "load the model")
        self._vocab = self._lib.llama_model_get_vocab(self._model)
        self.num_vocab = int(self._lib.llama_vocab_n_tokens(self._vocab))
        fitting = _CONTEXTS_BYTES // (_LOGIT_BYTES * self.num_vocab * window * batch_windows)
        count = max(1, min(threads, fitting, max_contexts or threads)) if gpu_layers == 0 else 1
        try:
            for _ in range(count):
                context = EvalContext(
                    self._model,
                    str(path),
                    window=window,
                    batch_windows=batch_windows,
                    threads=max(1, threads // count),
                    num_vocab=self.num_vocab,
                )
                self._contexts.append(context)
            learning = _WeightTap()
            self.run(np.zeros((1, 1), np.int32), None, learning)
        except BaseException:
            self.close()
            raise
        self._weights = learning.weights

    @cached_property
    def vocabulary(self) -> str:
        """Identifies the tokenization: a hash of the header's token data and of the llama.cpp version."""
        head = read_gguf_model(self._path).parts[0]
        digest = sha256(llama_identity().encode())
        with FileSource(head.name) as source:
            # llama.cpp chooses some tokenizers by the model's name.
            for key in (k for k in head.entries if k.startswith(("tokenizer.", "general."))):
                entry = head.entries[key]
                digest.update(f"{key} {entry.value_type} ".encode())
                digest.update(source.read_at(entry.offset, entry.nbytes))
        return digest.hexdigest()

    @property
    def trained_context(self) -> int:
        return int(self._lib.llama_model_n_ctx_train(self._model))

    def open_context(self, *, window: int, threads: int, kv_types: tuple[str, str]) -> EvalContext:
        """Another context on the same weights, with these KV cache types; the caller closes it."""
        return EvalContext(
            self._model,
            str(self._path),
            window=window,
            batch_windows=1,
            threads=threads,
            num_vocab=self.num_vocab,
            kv_types=kv_types,
        )

    @property
    def num_contexts(self) -> int:
        """Number of parts that `side_by_side` processes in parallel."""
        return len(self._contexts)

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        if self._model is not None:
            self._lib.llama_model_free(self._model)
            self._model = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def tokenize(self, text: str, *, parse_special: bool = True) -> Tokens:
        """Token ids of a text, without a BOS. With `parse_special`, tokens like <|im_end|> are parsed as such."""
        raw = text.encode()
        size = len(raw) + 8
        out = (ctypes.c_int32 * size)()
        count = self._lib.llama_tokenize(self._vocab, raw, len(raw), out, size, False, parse_special)
        if count < 0:
            raise LoadFailed(str(self._path), "tokenize the text")
        return np.array(out[:count], np.int32)

    @property
    def bos(self) -> int | None:
        """The BOS token for the start of a text, or None if the model uses none."""
        if not self._lib.llama_vocab_get_add_bos(self._vocab):
            return None
        token = int(self._lib.llama_vocab_bos(self._vocab))
        return token if token >= 0 else None

    def run(
        self,
        windows: Tokens,
        keep: npt.NDArray[np.bool_] | None = None,
        tap: NodeHook | None = None,
        *,
        drop_logits: bool = False,
    ) -> Logits:
        """Evaluate windows with the first context; see `EvalContext.run`."""
        return self._contexts[0].run(windows, keep, tap, drop_logits=drop_logits)

    def cuts(self) -> Cuts:
        """Split points for evaluations of one whole window; none with layers on a GPU."""
        if self._gpu_layers:
            return find_cuts([])
        window = self._contexts[0].window
        tap = GraphTap(window)
        self.run(np.zeros((1, window), np.int32), np.ones(window, np.bool_), tap, drop_logits=True)
        return find_cuts(tap.nodes)

    def side_by_side(self, parts: Sequence[P], work: Callable[[EvalContext, int, P], T]) -> Iterator[T]:
        """Results of `work(context, index of the context, part)`, in the order of the parts.

        All contexts work in parallel. A part always gets the same context, so the result does not depend on timing.
        """
        if len(self._contexts) == 1:
            for part in parts:
                yield work(self._contexts[0], 0, part)
            return
        with ThreadPoolExecutor(max_workers=len(self._contexts)) as pool:
            for first in range(0, len(parts), len(self._contexts)):
                some = parts[first : first + len(self._contexts)]
                yield from pool.map(work, self._contexts, range(len(some)), some)

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weights used in multiplications or lookups, in order of use."""
        return tuple(self._weights)

    def overwrite(self, name: str, data: npt.NDArray[np.uint8]) -> None:
        """Replace a weight with other bytes of the same type, permanently."""
        for address in self._weights[name]:
            write_bytes(tensor_at(address), data)

    @contextmanager
    def swapped(self, values: dict[str, npt.NDArray[np.uint8]]) -> Iterator[None]:
        """Replace weights with other bytes of the same type within the `with` block; restores them exactly."""
        addresses = [(address, data) for name, data in values.items() for address in self._weights[name]]
        saved = [(address, read_bytes(tensor_at(address))) for address, _ in addresses]
        try:
            for address, data in addresses:
                write_bytes(tensor_at(address), data)
            yield
        finally:
            for address, data in saved:
                write_bytes(tensor_at(address), data)


class _WeightTap(NodeHook):
    """Finds the addresses of the weights. Reads no values.

    With layers on a GPU, a table that is also the head exists twice: for row lookups and as a matrix.
    """

    def __init__(self) -> None:
        self.weights: dict[str, list[int]] = {}

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Record the weight of a multiplication or lookup; never requests values."""
        del address
        if node.op in (op_id("MUL_MAT"), op_id("MUL_MAT_ID"), op_id("GET_ROWS")) and node.src[0]:
            name = tensor_at(node.src[0]).name.decode(errors="replace")
            if name.endswith(".weight"):
                addresses = self.weights.setdefault(name, [])
                if int(node.src[0]) not in addresses:
                    addresses.append(int(node.src[0]))
        return False

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Never called."""
        raise NotImplementedError

"""Finds a device's wrong operations: each node of a graph is computed by the device and again by the CPU.

llama.cpp's scheduler computes single nodes if a callback requests it. Before each node its sources are read back,
so both sides start from the same values, and only wrong operations differ.
"""

import ctypes
import time
from typing import Any, Final

import msgspec
import numpy as np

from engine.runner.llama.native.batch import Batch
from engine.runner.llama.native.llama_api import KernelsMissing, ggml
from engine.runner.llama.native.model import LoadedModel
from engine.runner.llama.native.tensor_layout import (
    BF16,
    F16,
    F32,
    MAX_DIMS,
    MAX_SRC,
    OP_PARAMS,
    InitParams,
    Tensor,
    check_layout,
)

# Source: ggml.h of 0.3.36: ggml_op. The library provides the names; these operations compute nothing.
EMPTY: Final = frozenset({"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"})
# Maximum error: the mean squared difference divided by the mean squared values. Source: ggml's test-backend-ops,
# which allows 5e-4 if products are summed in half precision or of 8-bit activations, and 1e-7 otherwise;
# half-precision math of some drivers is allowed ten times that.
PRODUCTS: Final = frozenset({"MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT", "OUT_PROD", "SSM_SCAN", "GATED_DELTA_NET"})
MAX_PRODUCT_ERROR: Final = 5e-4
MAX_ERROR: Final = 1e-6
# Memory of weights that the CPU rearranged, which cannot be read back. Source: ggml-cpu: repack.cpp, amx.cpp and
# kleidiai.cpp.
REARRANGED: Final = frozenset({b"CPU_REPACK", b"AMX", b"CPU_KLEIDIAI"})
PROMPT_TOKENS: Final = 40
SINGLE_TOKENS: Final = 3
WORDS: Final = {
    "FLASH_ATTN_EXT": "flash attention",
    "MUL_MAT": "matrix multiplication",
    "MUL_MAT_ID": "matrix multiplication of experts",
    "RMS_NORM": "normalization",
    "NORM": "normalization",
    "SOFT_MAX": "softmax",
    "ROPE": "rotary positions",
    "GET_ROWS": "reading rows",
    "SET_ROWS": "writing rows of the cache",
    "CPY": "copying",
    "CONT": "copying",
    "GLU": "gated activation",
    "UNARY": "activation",
    "ADD": "addition",
    "MUL": "multiplication by elements",
    "SSM_SCAN": "state scan",
    "SSM_CONV": "state convolution",
}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A device's results for one kind of operation: `error` is the worst relative mean square, NaN included.

    `kind` is ggml's name, `weights` the type of its first source, `rows` "one" or "many" columns.
    """

    kind: str
    weights: str
    rows: str
    count: int
    error: float
    wrong: bool

    @property
    def words(self) -> str:
        """Readable name, such as `matrix multiplication (q4_K, one token)`."""
        name = WORDS.get(self.kind, self.kind.lower().replace("_", " "))
        if self.kind == "FLASH_ATTN_EXT":
            return name
        return f"{name} ({self.weights}, {'one token' if self.rows == 'one' else 'several tokens'})"


class OperationCheck:
    """Compares every node of graphs that run while its callback is set in the context, until `deadline`."""

    def __init__(self, api: Any) -> None:
        """Raises: KernelsMissing: ggml's structs differ from those described here, or it has no CPU backend."""
        self._lib = ggml(api)
        self._declare()
        check_layout(self._lib)
        self._cpu = self._lib.ggml_backend_init_by_type(0, None)
        if not self._cpu:
            raise KernelsMissing("no CPU backend to compare with")
        self._results: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._expected: Any = None
        self.failure: BaseException | None = None
        self.deadline = float("inf")
        self.callback = api.ggml_backend_sched_eval_callback(self._guarded)

    def _declare(self) -> None:
        lib, pointer = self._lib, ctypes.POINTER(Tensor)
        for name, result, arguments in (
            ("ggml_graph_overhead", ctypes.c_size_t, []),
            ("ggml_nbytes", ctypes.c_size_t, [pointer]),
            ("ggml_op_name", ctypes.c_char_p, [ctypes.c_int]),
            ("ggml_type_name", ctypes.c_char_p, [ctypes.c_int]),
            ("ggml_new_graph", ctypes.c_void_p, [ctypes.c_void_p]),
            ("ggml_graph_add_node", None, [ctypes.c_void_p, pointer]),
            ("ggml_backend_graph_compute", ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p]),
            ("ggml_backend_init_by_type", ctypes.c_void_p, [ctypes.c_int, ctypes.c_char_p]),
            ("ggml_backend_free", None, [ctypes.c_void_p]),
            ("ggml_backend_buffer_name", ctypes.c_char_p, [ctypes.c_void_p]),
            (
                "ggml_backend_tensor_get",
                None,
                [pointer, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t],
            ),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments

    def close(self) -> None:
        self._lib.ggml_backend_free(self._cpu)

    def operations(self) -> list[Operation]:
        """Return all compared operations, the worst first."""
        operations = [
            Operation(
                kind=kind, weights=weights, rows=rows, count=count, error=error, wrong=not error <= _max_error(kind)
            )
            for (kind, weights, rows), (count, error) in self._results.items()
        ]
        return sorted(operations, key=lambda o: (not o.wrong, -np.nan_to_num(o.error, nan=np.inf)))

    def compare(
        self,
        loaded: LoadedModel,
        tokens: list[int],
        seconds: float = float("inf"),
        num_prompt: int = PROMPT_TOKENS,
    ) -> list[Operation]:
        """Compare the nodes of a prompt and of single tokens in a context with this callback, half the time each.

        Raises: ValueError: nothing could be compared.
        """
        first = max(1, min(num_prompt, len(tokens) - SINGLE_TOKENS))
        batch = Batch(loaded)
        batch.add_prompt(tokens[:first], 0, 0, last=True)
        started = time.monotonic()
        self.deadline = started + seconds / 2
        for at in range(first, min(first + SINGLE_TOKENS, len(tokens)) + 1):
            if batch.decode() != 0 or self.failure is not None:
                break
            self.deadline = started + seconds
            batch.clear()
            if at < len(tokens):
                batch.add(tokens[at], at, 0)
        if self.failure is not None and not self._results:
            raise ValueError(f"no operation could be compared: {self.failure}")
        return self.operations()

    def _guarded(self, address: int, ask: bool, _data: Any) -> bool:
        """Callback. An exception must not cross into C: the first is stored, and comparing stops."""
        if self.failure is not None:
            return not ask
        try:
            node = ctypes.cast(address, ctypes.POINTER(Tensor)).contents
            return self._should_compute(node) if ask else self._compare(node)
        except BaseException as error:  # noqa: BLE001 - the caller reports it
            self.failure = error
            return not ask

    def _kind(self, node: Tensor) -> str:
        return str(self._lib.ggml_op_name(node.op).decode())

    def _should_compute(self, node: Tensor) -> bool:
        """Return whether to compute this node alone; computes the expected result from its current sources."""
        self._expected = None
        if time.monotonic() > self.deadline:
            return False
        if self._kind(node) in EMPTY or not all(node.ne):
            return False
        # Nodes that are not compared, such as writes to an 8-bit cache, must still finish before the next one.
        is_readable = all(self._is_readable(source.contents) for source in node.src if source)
        if node.type in (F32, F16, BF16) and is_readable:
            self._expected = self._by_cpu(node)
        return True

    def _compare(self, node: Tensor) -> bool:
        if self._expected is None:
            return True
        right, wrong = self._values(node, self._expected), self._values(node, self._read(node))
        first = node.src[0].contents if node.src[0] else node
        key = self._kind(node), self._lib.ggml_type_name(first.type).decode(), "one" if node.ne[1] == 1 else "many"
        count, worst = self._results.get(key, (0, 0.0))
        error = relative_error(right, wrong)
        self._results[key] = count + 1, worst if np.isnan(worst) or error <= worst else error
        return True

    def _is_readable(self, tensor: Tensor) -> bool:
        buffer = tensor.view_src.contents.buffer if tensor.view_src else tensor.buffer
        return not buffer or self._lib.ggml_backend_buffer_name(buffer) not in REARRANGED

    def _read(self, tensor: Tensor) -> Any:
        """Return the tensor's bytes, from any device."""
        data = np.empty(self._lib.ggml_nbytes(ctypes.byref(tensor)), np.uint8)
        self._lib.ggml_backend_tensor_get(ctypes.byref(tensor), data.ctypes.data, 0, data.size)
        return data

    def _by_cpu(self, node: Tensor) -> Any:
        """Return the bytes of the node's result as the CPU computes it."""
        lib = self._lib
        room = (MAX_SRC + 2) * lib.ggml_tensor_overhead() + lib.ggml_graph_overhead()
        context = lib.ggml_init(InitParams(room, None, True))
        try:
            keep: list[Any] = []

            def copy(tensor: Tensor) -> Any:
                pointer = lib.ggml_new_tensor_4d(context, tensor.type, *tensor.ne)
                twin, data = pointer.contents, self._read(tensor)
                for i in range(MAX_DIMS):
                    twin.nb[i] = tensor.nb[i]
                twin.flags, twin.data = tensor.flags, data.ctypes.data
                keep.append(data)
                return pointer

            sources = [copy(node.src[i].contents) if node.src[i] else None for i in range(MAX_SRC)]
            result = copy(node)  # the unwritten part of a view stays unchanged
            twin, data = result.contents, keep[-1]
            twin.op = node.op
            for i in range(OP_PARAMS):
                twin.op_params[i] = node.op_params[i]
            for i, source in enumerate(sources):
                if source is not None:
                    twin.src[i] = source
            graph = lib.ggml_new_graph(context)
            lib.ggml_graph_add_node(graph, result)
            if lib.ggml_backend_graph_compute(self._cpu, graph) != 0:
                raise ValueError(f"the CPU does not compute {self._kind(node)}")
            return data
        finally:
            lib.ggml_free(context)

    @staticmethod
    def _values(node: Tensor, data: Any) -> Any:
        """Return the values in bytes of this node's shape, as float64."""
        strides = tuple(reversed(node.nb))
        shape = tuple(reversed(node.ne))
        kind: type[Any] = {F32: np.float32, F16: np.float16, BF16: np.uint16}[node.type]
        view = np.ndarray(shape, kind, data, strides=strides)
        if node.type == BF16:
            return (view.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return view.astype(np.float64)


def relative_error(right: Any, computed: Any) -> float:
    """Return the mean squared difference divided by that of the right values; NaN if only one is finite."""
    finite = np.isfinite(right)
    if not np.array_equal(finite, np.isfinite(computed)):
        return float("nan")
    square = float(np.square(right[finite]).sum())
    lost = float(np.square(right[finite] - computed[finite]).sum())
    return lost / square if square else float(lost > 0)


MAX_NAMED: Final = 3  # wrong operations in a text


def _max_error(kind: str) -> float:
    return MAX_PRODUCT_ERROR if kind in PRODUCTS else MAX_ERROR


def wrong_text(operations: list[Operation]) -> str:
    """Return the wrong operations as text, the worst first; empty if there are none."""
    wrong = list(dict.fromkeys(o.words for o in operations if o.wrong))
    more = f" and {len(wrong) - MAX_NAMED} more" if len(wrong) > MAX_NAMED else ""
    return ", ".join(wrong[:MAX_NAMED]) + more

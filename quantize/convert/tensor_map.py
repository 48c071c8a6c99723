"""A family's description of a model: metadata, and the source of every tensor's values."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantize.files.gguf_file import ValueType
from quantize.files.gguf_write import MetaValue, Scalar, array, scalar

Array = np.ndarray[Any, Any]


class Metadata(dict[str, MetaValue]):
    """Metadata of one model; keys with a leading dot get the architecture as prefix."""

    def __init__(self, architecture: str) -> None:
        super().__init__()
        self.architecture = architecture
        self.put("general.architecture", architecture)

    def put(self, key: str, value: Scalar, type_id: ValueType | None = None) -> None:
        """Store one value: text, UINT32 for integers, FLOAT32 for floats, unless `type_id` is given."""
        self[self._full(key)] = scalar(value, type_id)

    def put_float(self, key: str, value: float) -> None:
        """Store one FLOAT32, also from an integer."""
        self.put(key, float(value), ValueType.FLOAT32)

    def put_array(self, key: str, values: list[Any] | Array, element: ValueType) -> None:
        self[self._full(key)] = array(values, element)

    def _full(self, key: str) -> str:
        return f"{self.architecture}{key}" if key.startswith(".") else key


@dataclass(frozen=True)
class OutTensor:
    """A tensor to write: `shape` in ggml order; `chunks` yields its rows in order.

    Chunks are (rows, shape[0]) arrays of float16, float32 or bfloat16 bits in uint16. `keep_f32` marks norms,
    biases and routers, which llama.cpp requires in float32. `dtypes` are the float types of its values in the
    folder, `formats` the formats of few bits in which it stores them ("" for floats).
    """

    name: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[Array]] = field(repr=False)
    keep_f32: bool = False
    dtypes: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()


@dataclass
class Recipe:
    """Everything needed to write a model; `notes` describe what was omitted and why."""

    metadata: Metadata
    tensors: list[OutTensor]
    notes: list[str] = field(default_factory=list)

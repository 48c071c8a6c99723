"""What a family says about its model: metadata, and where every tensor's values come from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantize.files.gguf_file import ValueType
from quantize.files.gguf_write import MetaValue, Scalar, array, scalar

Array = np.ndarray[Any, Any]


class Metadata(dict[str, MetaValue]):
    """Metadata of one model; keys with a leading dot get the architecture in front."""

    def __init__(self, architecture: str) -> None:
        super().__init__()
        self.architecture = architecture
        self.put("general.architecture", architecture)

    def put(self, key: str, value: Scalar, type_id: ValueType | None = None) -> None:
        """One value: text, UINT32 for whole numbers, FLOAT32 for fractions, unless typed."""
        self[self._full(key)] = scalar(value, type_id)

    def put_float(self, key: str, value: float) -> None:
        """One FLOAT32, also from a whole number."""
        self.put(key, float(value), ValueType.FLOAT32)

    def put_array(self, key: str, values: list[Any] | Array, element: ValueType) -> None:
        """An array of one element type."""
        self[self._full(key)] = array(values, element)

    def _full(self, key: str) -> str:
        return f"{self.architecture}{key}" if key.startswith(".") else key


@dataclass(frozen=True)
class OutTensor:
    """A tensor to write: `shape` in ggml order; `chunks` yields its rows in order.

    Pieces are (rows, shape[0]) arrays of float16, float32 or bfloat16 bits in uint16. `keep_f32`: norms, biases
    and routers, which llama.cpp wants in float32.
    """

    name: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[Array]] = field(repr=False)
    keep_f32: bool = False


@dataclass
class Recipe:
    """All that is needed to write a model; `notes` tell what was left out and why."""

    metadata: Metadata
    tensors: list[OutTensor]
    notes: list[str] = field(default_factory=list)

"""Reads the weights of a model file as float32 rows, from any stored type."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.errors import BadFile
from quantize.files.gguf_file import GgufFile, TensorInfo
from quantize.files.gguf_split import GgufModel, read_gguf_model
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata
from quantize.ggml_types import GgmlType
from quantize.native.blocks import dequantize_rows
from quantize.tensor_rules import allows_quantization
from quantize.types import TensorSpec

Floats = npt.NDArray[np.float32]


class SourceWeights:
    """Tensors of a GGUF model by name. Only for child processes, because the file is memory-mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model: GgufModel = read_gguf_model(path)
        self._tensors: dict[str, tuple[GgufFile, TensorInfo]] = {
            tensor.name: (part, tensor) for part, tensor in self.model.tensors()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """All tensor names, in file order."""
        return tuple(self._tensors)

    def info(self, name: str) -> TensorInfo:
        """Shape and type of a tensor. Raises: BadFile: no such tensor."""
        if name not in self._tensors:
            raise BadFile(str(self.path), f"it has no tensor {name!r}")
        return self._tensors[name][1]

    def shape(self, name: str) -> tuple[int, int, int]:
        """(matrices, rows per matrix, row_values); a tensor with a single matrix has `matrices` 1."""
        width, rows, *outer = (*self.info(name).shape, 1)
        return int(np.prod(outer, dtype=np.int64)), rows, width

    def rows(self, name: str, matrix: int = 0, picked: npt.NDArray[np.intp] | slice | None = None) -> Floats:
        """Rows of one matrix of a tensor as (rows, row_values) float32.

        Raises: BadFile: a value is not finite (the error names the tensor), or no such tensor.
        """
        info = self.info(name)
        part = self._tensors[name][0]
        matrices, rows, width = self.shape(name)
        raw: npt.NDArray[Any] = part.tensor_bytes(info).reshape(matrices, rows, -1)[matrix]
        packed = np.ascontiguousarray(raw if picked is None else raw[picked])
        if info.ggml_type.name == "F16":
            values = packed.view(np.float16).astype(np.float32)
        else:
            values = dequantize_rows(packed, info.ggml_type.name, width)
        if not np.isfinite(values).all():
            raise BadFile(str(self.path), f"tensor {name} contains infinite values or NaN", info.offset)
        return values

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """A tensor's bytes as stored, memory-mapped. Raises: BadFile: no such tensor."""
        info = self.info(name)
        stored: npt.NDArray[np.uint8] = self._tensors[name][0].tensor_bytes(info)
        return stored

    def source_qtype(self, name: str) -> str:
        """The GGML type in which a tensor is stored."""
        return self.info(name).ggml_type.name


def quantizable(source: SourceWeights, name: str) -> bool:
    """Whether llama.cpp quantizes this tensor."""
    info = source.info(name)
    return allows_quantization(TensorSpec(name, info.shape, info.ggml_type.name))


# Larger copies cost more memory than they save time.
_MOST_FLOAT_BYTES = 1 << 30


@contextmanager
def as_floats(source: Path, folder: Path, gpu_layers: int) -> Iterator[Path]:
    """A copy of a small F16 model in F32, for the duration of the block; otherwise the model itself.

    llama.cpp evaluates F32 in three quarters of the time on x86 CPUs, which convert halves at every product.
    """
    weights = SourceWeights(source)
    tensors = [tensor for _, tensor in weights.model.tensors()]
    floats = 4 * sum(t.num_values for t in tensors)
    types = {t.ggml_type for t in tensors}
    suits = GgmlType.F16 in types <= {GgmlType.F16, GgmlType.F32} and floats <= _MOST_FLOAT_BYTES
    if gpu_layers or not suits or platform.machine().lower() not in {"x86_64", "amd64"}:
        yield source
        return
    path = folder / "floats.gguf"
    slots = [TensorSlot(t.name, t.shape, GgmlType.F32) for t in tensors]
    writer = GgufWriter(path, copied_metadata(weights.model.parts[0]), slots)
    try:
        for tensor in tensors:
            matrices = weights.shape(tensor.name)[0]
            writer.write(tensor.name, (weights.rows(tensor.name, number) for number in range(matrices)))
        writer.close()
        yield path
    finally:
        writer.abandon()
        path.unlink(missing_ok=True)

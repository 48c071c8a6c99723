"""Reads and writes importance matrices in llama.cpp's GGUF format."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from quantize.errors import BadFile
from quantize.files.gguf_file import TensorInfo, read_gguf

_SUMS = ".in_sum2"
_COUNTS = ".counts"


class Importance(msgspec.Struct, frozen=True):
    """Statistics of one tensor's inputs.

    `sums` (matrices, row_values) are sums of squares over `counts` (matrices,) tokens.
    """

    sums: npt.NDArray[np.float32]
    counts: npt.NDArray[np.float32]

    def mean(self, matrix: int = 0) -> npt.NDArray[np.float32]:
        """(row_values,) mean squares, as llama-quantize uses them: 1 everywhere if there were no inputs."""
        index = min(matrix, len(self.counts) - 1)
        if self.counts[index] <= 0:
            return np.ones(self.sums.shape[1], np.float32)
        mean: npt.NDArray[np.float32] = self.sums[index] / self.counts[index]
        return mean


def write_imatrix(path: Path, entries: Mapping[str, Importance], dataset: str, chunk_tokens: int) -> None:
    """Write a file for llama-quantize's --imatrix, completely or not at all."""
    import gguf

    chunks = max((int(e.counts.max()) // chunk_tokens for e in entries.values()), default=0)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    writer = gguf.GGUFWriter(str(partial), "")
    # The format has a type but no architecture; GGUFWriter adds one, which readers ignore.
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", [dataset])
    writer.add_uint32("imatrix.chunk_count", chunks)
    writer.add_uint32("imatrix.chunk_size", chunk_tokens)
    for name in sorted(entries):
        writer.add_tensor(name + _SUMS, entries[name].sums)
        writer.add_tensor(name + _COUNTS, entries[name].counts.reshape(-1, 1))
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_imatrix(path: Path) -> dict[str, Importance]:
    """Read llama.cpp's imatrix GGUF.

    Raises: BadFile: not an imatrix, shapes that do not match, or values that are not finite. Unreadable.
    IncompleteFile.
    """
    file = read_gguf(path)
    if file.metadata.get("general.type") != "imatrix":
        raise BadFile(str(path), "it is not an importance matrix (general.type is not 'imatrix')")
    tensors = {t.name: t for t in file.tensors}
    entries: dict[str, Importance] = {}

    def values(tensor: TensorInfo) -> npt.NDArray[np.float32]:
        if tensor.ggml_type.name != "F32":
            raise BadFile(str(path), f"{tensor.name} is not F32", tensor.offset)
        data = np.array(file.tensor_bytes(tensor)).view(np.float32)
        if not np.isfinite(data).all() or (data < 0).any():
            raise BadFile(str(path), f"{tensor.name} contains negative, infinite or NaN values", tensor.offset)
        return data

    for name, tensor in tensors.items():
        if not name.endswith(_SUMS):
            continue
        weight = name.removesuffix(_SUMS)
        if weight + _COUNTS not in tensors:
            raise BadFile(str(path), f"{name} has no counts", tensor.offset)
        counts, sums = values(tensors[weight + _COUNTS]), values(tensor)
        width = tensor.shape[0]
        if width == 0 or sums.size % width or sums.size // width != counts.size:
            raise BadFile(str(path), f"{name} and its counts do not belong together", tensor.offset)
        entries[weight] = Importance(sums.reshape(-1, width), counts)
    if not entries:
        raise BadFile(str(path), "the importance matrix is empty")
    return entries

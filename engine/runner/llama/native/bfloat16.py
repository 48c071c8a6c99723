"""Converts an embedding model to BF16 on CPUs that multiply it faster than F16 and F32.

With AVX-512 BF16 an encoder takes 0.7 of F16's CPU time; cosines with the vectors of F32 stay above 0.9999
(the log, "Documents"). llama.cpp takes types only from the file, so it gets a temporary copy during the load.
Without `repack` the weights stay unchanged.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from devices.atomic_file import scratch_folder
from devices.errors import TesseraError
from engine.core.paths import user_paths
from engine.runner.protocol import LoadSettings
from quantize.convert.checkpoint import f32_to_bf16
from quantize.files.gguf_file import TensorInfo, read_gguf
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata, scalar
from quantize.ggml_types import GgmlType

# The copy is written at each load; a larger file would wait for the disk, and is usually quantized.
MAX_BYTES: Final = 512 << 20
# From llama_print_system_info: the instructions, and the kernels that use them.
_NEEDED: Final = (b"AVX512_BF16 = 1", b"LLAMAFILE = 1")
_WIDE: Final = {GgmlType.F16: "<f2", GgmlType.F32: "<f4"}
_MATRIX: Final = 2
_FILE_TYPE: Final = 32  # llama.h, LLAMA_FTYPE_MOSTLY_BF16


@contextlib.contextmanager
def fastest_file(api: Any, settings: LoadSettings) -> Iterator[str]:
    """Yield the file to load: a temporary copy with BF16 matrices, or the model's own file."""
    if not _suits(api, settings):
        yield settings.path
        return
    file = settings.path
    with contextlib.ExitStack() as stack:
        try:
            copy = stack.enter_context(scratch_folder(user_paths().cache / "copies")) / "bf16.gguf"
            if write_bfloat16(Path(settings.path), copy):
                file = str(copy)
        except (TesseraError, OSError, ValueError) as error:
            sys.stderr.write(f"no copy in BF16, the file is loaded as it is: {error}\n")
        yield file


def _suits(api: Any, settings: LoadSettings) -> bool:
    if not (settings.embeddings and settings.repack) or settings.devices or settings.n_gpu_layers:
        return False
    path = Path(settings.path)
    info = api.llama_print_system_info()
    return path.is_file() and path.stat().st_size <= MAX_BYTES and all(name in info for name in _NEEDED)


def write_bfloat16(source: Path, out: Path) -> bool:
    """Copy a file with the matrices of its blocks in BF16; False: none are F16 or F32, or the file is split.

    Raises: BadFile, IncompleteFile, Unreadable, OSError.
    """
    file = read_gguf(source)
    changed = {t.name for t in file.tensors if _is_matrix(t)}
    if not changed or int(file.metadata.get("split.count", 0) or 0) > 1:  # type: ignore[arg-type]  # a number there
        return False
    slots = [TensorSlot(t.name, t.shape, GgmlType.BF16 if t.name in changed else t.ggml_type) for t in file.tensors]
    metadata = copied_metadata(file) | {"general.file_type": scalar(_FILE_TYPE)}
    writer = GgufWriter(out, metadata, slots)
    try:
        for tensor in file.tensors:
            raw = file.tensor_bytes(tensor)
            if tensor.name in changed:
                raw = f32_to_bf16(raw.view(_WIDE[tensor.ggml_type]).astype(np.float32))
            writer.write(tensor.name, [raw])
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    return True


def _is_matrix(tensor: TensorInfo) -> bool:
    """Whether rows are multiplied by this weight; embeddings are only looked up, and norms are small."""
    return tensor.name.startswith("blk.") and len(tensor.shape) == _MATRIX and tensor.ggml_type in _WIDE

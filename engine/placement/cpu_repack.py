"""Whether the CPU should read weights as the file has them, instead of a copy in another order."""

from typing import Final

import msgspec

from engine.placement.repack import is_repacked
from engine.placement.shape import ModelShape
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo

# llama.cpp rewrites some types for kernels that take eight rows of a weight at once, and has kernels that multiply
# tiles of the file's own blocks, which it uses only where a weight was not rewritten. For 4 bits (K) and VNNI these
# take .68 to .73 of the time for 64 to 512 rows of a prompt; without VNNI 1.25. Measured: docs/log.md, engine.
# An answer's token is one row, which they multiply more slowly: a thread takes so many GB/s of the file's weights,
# and 16 of the copy. That costs nothing where memory delivers less than this to all threads together, and half as
# much time again where it delivers more. Measured: docs/log.md, "weights as the file has them, again".
THREAD_GBS: Final = 12.5
# Of a CPU's bandwidth on paper. Usual for two channels; Strix Halo's processor reaches less.
MEMORY_PART: Final = 0.75


def file_weights(
    settings: LoadSettings, shape: ModelShape, isa: frozenset[str], bandwidth_gbs: float
) -> LoadSettings | None:
    """`settings` without rewritten weights, or None where the choice was made or it would not pay.

    `isa` are the CPU's instruction sets. Experts keep their copies: each sees few rows of a prompt. So do all
    where threads are too few to wait for memory.
    """
    if settings.n_threads * THREAD_GBS < MEMORY_PART * bandwidth_gbs:
        return None
    if not settings.repack or settings.engine_args.repack is not None or shape.experts:
        return None
    if "amx_int8" in isa:
        return None
    rewritten = [tensor for tensor in shape.tensors if is_repacked(tensor, isa)]
    tiled = sum(tensor.num_values for tensor in rewritten if _is_tiled(tensor, isa))
    if 2 * tiled <= sum(tensor.num_values for tensor in rewritten):
        return None
    return msgspec.structs.replace(settings, repack=False)


def _is_tiled(tensor: TensorInfo, isa: frozenset[str]) -> bool:
    needs = tensor.ggml_type.traits.tiled
    return bool(needs) and needs <= isa

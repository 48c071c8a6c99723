"""Whether the processor should read weights as the file has them, instead of a copy in another order."""

from typing import Final

import msgspec

from engine.fit.repack import is_repacked
from engine.fit.shape import ModelShape
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo

# llama.cpp rewrites some types for kernels that take eight rows of a weight at once, and has kernels that multiply
# tiles of the file's own blocks, which it uses only where a weight was not rewritten. For 4 bits (K) and VNNI the
# latter take .68 to .73 of the time for 64 to 512 rows of a prompt, 1.02 for one row and 1.08 for two to eight;
# without VNNI 1.25. With 2 bits .5, but one row 1.15. Measured: docs/log.md, engine.
FILE_WEIGHTS_WHY: Final = (
    "weights as the file has them, not rewritten: this processor multiplies prompts by them in two thirds of the "
    "time, and a copy is saved"
)


def file_weights(settings: LoadSettings, shape: ModelShape, isa: frozenset[str]) -> LoadSettings | None:
    """`settings` without rewritten weights, or None where the choice was made or it would not pay.

    `isa` are the processor's instruction sets. Experts keep their copies: each sees few rows of a prompt.
    """
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

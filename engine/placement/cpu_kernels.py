"""What our own kernels compute on the CPU, beside llama.cpp's: products with prompts, and attention."""

from typing import Final

import msgspec

from devices.backends.cpu_kernels import ATTENTION
from engine.message_catalog.reasons import Reason, because
from engine.placement.flash_attention import heads_of
from engine.placement.repack import NOT_MULTIPLIED, is_repacked
from engine.placement.shape import BLOCK, ModelShape
from engine.runner.protocol import LoadSettings
from quantize.files.gguf_file import TensorInfo
from quantize.ggml_types import TILED, GgmlType

# llama.cpp multiplies Q4_1 and Q5_1 row by row: ours take .21 to .22 of a prompt's time there; .39 and .5 where it
# has tiles of its own, of fewer operations for each byte; .56 and .64 of what it rewrote (Q4_0, Q4_K).
# Measured: docs/log.md, "tiles for prompts", "rewritten weights by our kernels".
# Every product is a step of its own then, at whose ends threads meet: too dear for a few weights of many.
LEAST_SHARE: Final = 0.1
_MATRIX: Final = 2
# Measured: docs/log.md, "attention of our own".
ATTENTION_ISA: Final = frozenset({"avx2", "fma", "f16c"})
# Values of a head that one step of its vectors takes. Source: engine/kernels/attend.cpp, `is_read`.
HEAD_STEP: Final = 16
# All that there are kernels for.
TILE_KERNELS: Final = (*TILED, ATTENTION)


def prompt_tiles(settings: LoadSettings, shape: ModelShape, isa: frozenset[str]) -> LoadSettings | None:
    """`settings` with our kernels for the types they pay for, or None where the choice was made or there are none.

    `isa` are the CPU's instruction sets.
    """
    if settings.engine_args.tiles is not None or "amx_int8" in isa:
        return None
    weights = [tensor for tensor in shape.tensors if _is_weight(tensor)]
    values: dict[GgmlType, int] = {}
    for tensor in weights:
        traits = tensor.ggml_type.traits
        reads = traits.tiles_of_copy == (settings.repack and is_repacked(tensor, isa))
        if traits.tiles and traits.tiles <= isa and len(tensor.shape) == _MATRIX and reads:
            values[tensor.ggml_type] = values.get(tensor.ggml_type, 0) + tensor.num_values
    if not values or sum(values.values()) < LEAST_SHARE * sum(tensor.num_values for tensor in weights):
        return None
    return msgspec.structs.replace(settings, tiles=tuple(name for name in TILED if GgmlType[name] in values))


def tile_attention(settings: LoadSettings, shape: ModelShape, isa: frozenset[str]) -> LoadSettings | None:
    """`settings` with attention by our own kernels, or None where the choice was made or they cannot."""
    if settings.engine_args.tiles is not None or settings.flash_attn == "off" or not isa >= ATTENTION_ISA:
        return None
    heads = heads_of(shape)
    if heads is not None and heads.width % HEAD_STEP:
        return None
    return msgspec.structs.replace(settings, tiles=(*settings.tiles, ATTENTION))


def why_tiles(settings: LoadSettings) -> list[Reason]:
    """What they are expected to save."""
    types = tuple(name for name in settings.tiles if name != ATTENTION)
    found = [because("own_prompt_kernels", types=types)] if types else []
    return [*found, because("own_attention_kernels")] if ATTENTION in settings.tiles else found


def _is_weight(tensor: TensorInfo) -> bool:
    dims = [n for n in tensor.shape if n > 1]
    return bool(BLOCK.match(tensor.name)) and len(dims) >= _MATRIX and not NOT_MULTIPLIED.search(tensor.name)

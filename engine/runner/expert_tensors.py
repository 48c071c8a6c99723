"""Which weights of a mixture are its experts, and how few of them can be in memory at least."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from quantize.files.gguf_file import TensorInfo

# Stacks of one matrix an expert, which a token's routing chooses from. Their biases are small and stay.
STACK: Final = re.compile(r"blk\.(\d{1,5})\.ffn_(?:up|down|gate|gate_up)_exps\.weight")
# Stacks with a second routing of their own (GroveMoE) are not streamed.
_SECOND: Final = re.compile(r"\.ffn_\w+_chexps\.")
_DIMS: Final = 3
# An expert is read and kept in whole pages, so each matrix takes up to two more than it has bytes.
PAGE: Final = 4096
# A layer that is computed and the one that is read behind it; what fewer hold is not worth having.
WINDOW_LAYERS: Final = 2
# Readers at work, each with room for one matrix. Solid-state disks reach their speed with four to eight.
READERS: Final = 8


def stacks(tensors: Iterable[TensorInfo], experts: int) -> Mapping[int, tuple[TensorInfo, ...]]:
    """Layer → its stacks of `experts` matrices; empty where the routing of this model is not understood."""
    found: dict[int, list[TensorInfo]] = {}
    for tensor in tensors:
        if _SECOND.search(tensor.name):
            return {}
        match = STACK.fullmatch(tensor.name)
        if match is None:
            continue
        if experts <= 0 or len(tensor.shape) != _DIMS or tensor.shape[-1] != experts or tensor.nbytes % experts:
            return {}
        found.setdefault(int(match[1]), []).append(tensor)
    return {layer: tuple(found[layer]) for layer in sorted(found)}


def held_bytes(layer: Iterable[TensorInfo], experts: int) -> int:
    """Memory that one expert of these stacks takes, in whole pages."""
    return sum(-(-tensor.nbytes // experts // PAGE) * PAGE + PAGE for tensor in layer)


def reader_bytes(layers: Mapping[int, tuple[TensorInfo, ...]], experts: int) -> int:
    """What the readers hold while they read: a matrix each."""
    largest = max((t.nbytes // experts for layer in layers.values() for t in layer), default=0)
    return READERS * (largest + 2 * PAGE)


def least_bytes(layers: Mapping[int, tuple[TensorInfo, ...]], experts: int) -> int:
    """The least memory for experts that a load is worth trying with."""
    sizes = [experts * held_bytes(layer, experts) for layer in layers.values()]
    return WINDOW_LAYERS * max(sizes, default=0) + reader_bytes(layers, experts)

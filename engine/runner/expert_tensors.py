"""Finds the expert weights of an MoE model and the minimum memory that streaming them needs."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from quantize.files.gguf_file import TensorInfo

# Tensors with one matrix per expert, from which a token's routing chooses. Their biases are small and stay in
# memory.
STACK: Final = re.compile(r"blk\.(\d{1,5})\.ffn_(?:up|down|gate|gate_up)_exps\.weight")
# Tensors with separate second routing (GroveMoE) are not streamed.
_SECOND: Final = re.compile(r"\.ffn_\w+_chexps\.")
_DIMS: Final = 3
# An expert is read and cached in whole pages, so each matrix takes up to two additional pages.
PAGE: Final = 4096
# One layer being computed and the next one being read; a smaller cache is not worthwhile.
WINDOW_LAYERS: Final = 2
# Number of reader threads, each with a buffer for one matrix. SSDs reach their full speed with four to eight.
READERS: Final = 8


def stacks(tensors: Iterable[TensorInfo], experts: int) -> Mapping[int, tuple[TensorInfo, ...]]:
    """Return layer → its tensors of `experts` matrices; empty if the model's routing is not supported."""
    by_layer: dict[int, list[TensorInfo]] = {}
    for tensor in tensors:
        if _SECOND.search(tensor.name):
            return {}
        match = STACK.fullmatch(tensor.name)
        if match is None:
            continue
        if experts <= 0 or len(tensor.shape) != _DIMS or tensor.shape[-1] != experts or tensor.nbytes % experts:
            return {}
        by_layer.setdefault(int(match[1]), []).append(tensor)
    return {layer: tuple(by_layer[layer]) for layer in sorted(by_layer)}


def held_bytes(layer: Iterable[TensorInfo], experts: int) -> int:
    """Return the memory of one expert of these tensors, in whole pages."""
    return sum(-(-tensor.nbytes // experts // PAGE) * PAGE + PAGE for tensor in layer)


def reader_bytes(layers: Mapping[int, tuple[TensorInfo, ...]], experts: int) -> int:
    """Return the memory of the readers' buffers: one matrix each."""
    largest = max((t.nbytes // experts for layer in layers.values() for t in layer), default=0)
    return READERS * (largest + 2 * PAGE)


def least_bytes(layers: Mapping[int, tuple[TensorInfo, ...]], experts: int) -> int:
    """Return the minimum memory for experts with which a load is worth trying."""
    sizes = [experts * held_bytes(layer, experts) for layer in layers.values()]
    return WINDOW_LAYERS * max(sizes, default=0) + reader_bytes(layers, experts)

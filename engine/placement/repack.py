"""Which weights llama.cpp rewrites for the CPU's kernels: those live in its own memory, not in the file's pages."""

import re

from quantize.files.gguf_file import TensorInfo

# Looked up by row, never multiplied; and one-dimensional or recurrent parameters.
NOT_MULTIPLIED = re.compile(
    r"(^token_embd|^token_types|^position_embd|per_layer_token_embd|conv1d|_norm\.|\.bias$)"
)


def is_repacked(tensor: TensorInfo, isa: frozenset[str], *, as_head: bool = False) -> bool:
    """Whether the CPU backend keeps its own copy of a weight. `as_head`: token_embd in its second use as head."""
    dims = [n for n in tensor.shape if n > 1]
    if len(dims) not in {2, 3} or (NOT_MULTIPLIED.search(tensor.name) and not as_head):
        return False
    rows = tensor.shape[1]
    if "amx_int8" in isa and tensor.ggml_type.traits.amx and len(dims) == 2:  # noqa: PLR2004 - a plain matrix
        return True
    return any(rows % multiple == 0 and needs <= isa for multiple, needs in tensor.ggml_type.traits.repack)

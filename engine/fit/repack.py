"""Which weights llama.cpp rewrites for the CPU's kernels: those live in its own memory, not in the file's pages."""

import re

from quantize.ggml_types import GgmlType
from quantize.gguf_file import TensorInfo

# type: (rows must be a multiple of, instruction sets of which one set suffices).
# Source: ggml-cpu/repack.cpp, ggml_repack_get_optimal_repack_type.
_AVX2, _DOT = frozenset({"avx2"}), frozenset({"asimddp"})
RULES: dict[GgmlType, tuple[tuple[int, frozenset[str]], ...]] = {
    GgmlType.Q4_0: ((8, _AVX2), (4, _DOT)),
    GgmlType.Q4_K: ((8, _AVX2), (8, _DOT)),
    GgmlType.Q2_K: ((8, frozenset({"avx512f"})),),
    GgmlType.Q5_K: ((8, _DOT),),
    GgmlType.Q6_K: ((8, _DOT),),
    GgmlType.IQ4_NL: ((8, _AVX2), (4, _DOT)),
    GgmlType.MXFP4: ((8, _AVX2), (4, _DOT)),
    GgmlType.Q8_0: ((4, _DOT),),
    GgmlType.Q1_0: ((4, _DOT),),
}
# Source: ggml-cpu/amx/common.h, qtype_has_amx_kernels.
AMX = frozenset(
    {GgmlType.Q4_0, GgmlType.Q4_1, GgmlType.Q8_0, GgmlType.Q4_K, GgmlType.Q5_K, GgmlType.Q6_K, GgmlType.IQ4_XS}
)
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
    if "amx_int8" in isa and tensor.ggml_type in AMX and len(dims) == 2:  # noqa: PLR2004 - a plain matrix
        return True
    return any(rows % multiple == 0 and needs <= isa for multiple, needs in RULES.get(tensor.ggml_type, ()))

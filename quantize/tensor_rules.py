"""llama.cpp's rules per tensor: whether it is quantized, and the fallback type if its rows do not fit the blocks.

Source of all rules: llama.cpp, src/llama-quant.cpp (tensor_allows_quantization, tensor_type_fallback,
tensor_requires_imatrix), at the commit of llama-cpp-python 0.3.36.
"""

from quantize.errors import UnquantizableRows
from quantize.ggml_types import BLOCK_SIZES, GgmlType, row_bytes
from quantize.types import ModelSpec, TensorSpec

# Name fragments of tensors that keep their type: norms, routers, tiny or positional tables, vision and audio parts.
_EXCLUDED_FRAGMENTS = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
)
_EXCLUDED_NAMES = frozenset({"position_embd.weight", "token_types.weight"})

# Matrices with a row for each token.
TOKEN_TABLES = frozenset({"token_embd.weight", "per_layer_token_embd.weight", "output.weight"})


def num_dims(shape: tuple[int, ...]) -> int:
    """Number of dimensions as ggml counts them: without trailing dimensions of size 1."""
    dims = len(shape)
    while dims > 1 and shape[dims - 1] == 1:
        dims -= 1
    return dims


def allows_quantization(tensor: TensorSpec) -> bool:
    """Whether llama.cpp quantizes this tensor; other tensors keep their type."""
    name = tensor.name
    return (
        num_dims(tensor.shape) > 1
        and name.endswith("weight")
        and name not in _EXCLUDED_NAMES
        and not any(fragment in name for fragment in _EXCLUDED_FRAGMENTS)
    )


def effective_type(ideal: GgmlType, row_values: int) -> GgmlType:
    """The type that a row of `row_values` values gets if `ideal` is requested."""
    if row_values % BLOCK_SIZES[ideal][0] == 0:
        return ideal
    fallback = GgmlType[ideal.traits.fallback or ideal.name]
    return fallback if row_values % BLOCK_SIZES[fallback][0] == 0 else GgmlType.F16


def unquantizable_rows(model: ModelSpec) -> UnquantizableRows | None:
    """The weights whose rows are a whole number of blocks of no type; None if there are none."""
    blocks = {BLOCK_SIZES[qtype][0] for qtype in GgmlType if qtype.traits.writable} - {1}
    odd = [
        tensor.row_values
        for tensor in model.tensors
        if allows_quantization(tensor) and all(tensor.row_values % block for block in blocks)
    ]
    return UnquantizableRows(len(odd), odd[0], min(blocks)) if odd else None


def needs_imatrix(name: str, qtype: GgmlType) -> bool:
    """Whether this tensor needs an importance matrix for this type."""
    needed = qtype.traits.imatrix
    return needed == "always" or (needed == "weights" and name not in TOKEN_TABLES)


def tensor_bytes(tensor: TensorSpec, qtype: GgmlType) -> int:
    """Bytes of the tensor's data in a type, without alignment.

    Raises: ValueError: the row is not a whole number of blocks.
    """
    return tensor.num_rows * row_bytes(tensor.row_values, qtype)

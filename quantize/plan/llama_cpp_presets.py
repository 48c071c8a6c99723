"""The llama.cpp presets: the type that llama-quantize gives each tensor, reproduced rule by rule.

Source: llama.cpp, src/llama-quant.cpp and src/llama-model-loader.h (weight_name_comparer), at the commit of
llama-cpp-python 0.3.36. A test compares every preset with the types that `llama_model_quantize` writes.
"""

import re

from quantize.ggml_types import GgmlType
from quantize.plan.llama_cpp_preset_rules import LOW_MIXES, Layer, TensorRole, mix_type
from quantize.tensor_rules import allows_quantization, effective_type
from quantize.types import ModelSpec

_LAYER = re.compile(r"blk\.(\d+)\.")
# First match wins, as in llama.cpp's tensor_get_category.
_FRAGMENTS = (
    ("attn_qkv.weight", TensorRole.ATTN_V),
    ("attn_kv_b.weight", TensorRole.ATTN_V),
    ("attn_v.weight", TensorRole.ATTN_V),
    ("attn_k.weight", TensorRole.ATTN_K),
    ("attn_q.weight", TensorRole.ATTN_Q),
    ("attn_output.weight", TensorRole.ATTN_OUTPUT),
    ("ffn_up", TensorRole.FFN_UP),
    ("ffn_gate", TensorRole.FFN_GATE),
    ("ffn_down", TensorRole.FFN_DOWN),
)
_NAMED_LAYER = frozenset({TensorRole.FFN_DOWN, TensorRole.FFN_GATE, TensorRole.FFN_UP})
_COUNTED = _NAMED_LAYER | {TensorRole.ATTN_V}
# 70B models by number of layers: llama.cpp gives their small value projections Q5_K instead of Q3_K or Q4_K.
_SPARED_70B = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}


def role_of(name: str) -> TensorRole:
    """llama.cpp's category for a tensor name."""
    if name == "output.weight":
        return TensorRole.OUTPUT
    if name in {"token_embd.weight", "per_layer_token_embd.weight"}:
        return TensorRole.TOKEN_EMBD
    return next((role for fragment, role in _FRAGMENTS if fragment in name), TensorRole.OTHER)


def layer_of(name: str) -> int:
    """The layer in a tensor's name, -1 outside the layers."""
    match = _LAYER.match(name)
    return int(match.group(1)) if match else -1


def stock_types(model: ModelSpec, mix: str, *, has_imatrix: bool) -> dict[str, GgmlType]:
    """The type that llama-quantize gives every tensor for a preset, including fallbacks.

    Tensors that are not quantized keep the source's type. Raises: KeyError: unknown preset.
    """
    ordered = sorted(model.tensors, key=lambda t: (layer_of(t.name), t.name))
    num_v = sum(role_of(t.name) is TensorRole.ATTN_V for t in ordered)
    tied_head = all(t.name != "output.weight" for t in ordered)
    seen = dict.fromkeys(_COUNTED, 0)
    types: dict[str, GgmlType] = {}
    for tensor in ordered:
        if not allows_quantization(tensor):
            types[tensor.name] = GgmlType[tensor.qtype]
            continue
        role = role_of(tensor.name)
        # For models with experts llama.cpp reads the layer from the name, except in presets below three bits.
        by_layer = model.num_experts > 1 and role in _NAMED_LAYER and mix not in LOW_MIXES
        index = layer_of(tensor.name) if by_layer else seen.get(role, 0)
        at = Layer(
            index=index,
            count=num_v if role is TensorRole.ATTN_V else model.num_layers,
            gqa=model.num_heads // model.num_kv_heads if model.num_kv_heads else 0,
            num_experts=model.num_experts,
            has_imatrix=has_imatrix,
            falcon=model.architecture == "falcon",
            is_70b=_is_70b(model),
        )
        ideal = mix_type(mix, role, at, tensor.row_values, tied_head=tied_head)
        types[tensor.name] = effective_type(ideal, tensor.row_values)
        if role in _COUNTED:
            seen[role] += 1
    return {t.name: types[t.name] for t in model.tensors}


def uniform_types(model: ModelSpec, qtype: GgmlType) -> dict[str, GgmlType]:
    """Give one type to every tensor that may be quantized (or the fallback type for its rows)."""
    return {
        t.name: effective_type(qtype, t.row_values) if allows_quantization(t) else GgmlType[t.qtype]
        for t in model.tensors
    }


def _is_70b(model: ModelSpec) -> bool:
    if _SPARED_70B.get(model.architecture) != model.num_layers:
        return False
    return model.architecture != "llama" or model.num_heads != model.num_kv_heads

"""Expected KL divergence before anything is measured: by type, tensor role and depth."""

import math

from quantize.ggml_types import GgmlType
from quantize.plan.llama_cpp_preset_rules import TensorRole
from quantize.plan.llama_cpp_presets import layer_of, role_of
from quantize.tensor_rules import allows_quantization
from quantize.types import ModelSpec, TensorSpec

# KL divergence per unit of relative error, by role. Measured: sensitivity by in-place swaps on a trained model of
# eight layers. The sum over a role's layers matters, so each layer gets its share (log-archive.md, plan).
_ALPHA_OF_ROLE = {
    TensorRole.OUTPUT: 0.9,
    TensorRole.TOKEN_EMBD: 0.15,
    TensorRole.ATTN_V: 0.4,
    TensorRole.ATTN_OUTPUT: 0.32,
    TensorRole.FFN_DOWN: 0.32,
    TensorRole.ATTN_Q: 0.13,
    TensorRole.ATTN_K: 0.13,
    TensorRole.FFN_GATE: 0.13,
    TensorRole.FFN_UP: 0.15,
    TensorRole.OTHER: 0.3,
}
# The first layers count more, because their errors pass through all others. The last layer counts somewhat more,
# because its errors go directly into the head.
_FIRST_LAYERS_WEIGHT, _LAST_LAYER_WEIGHT = 1.5, 1.2


def prior_damage(model: ModelSpec) -> dict[str, dict[str, float]]:
    """Expected KL divergence (nats per token) by tensor and type, for the tier that measures nothing."""
    tied = all(t.name != "output.weight" for t in model.tensors)
    errors = {t.name: t.traits.error for t in GgmlType if t.traits.error is not None}
    return {
        t.name: {qtype: _alpha(model, t, tied=tied) * error for qtype, error in errors.items()}
        for t in model.tensors
        if allows_quantization(t)
    }


def _alpha(model: ModelSpec, tensor: TensorSpec, *, tied: bool) -> float:
    role = role_of(tensor.name)
    if role is TensorRole.TOKEN_EMBD and tied:
        role = TensorRole.OUTPUT
    alpha = _ALPHA_OF_ROLE[role]
    layer, layers = layer_of(tensor.name), max(1, model.num_layers)
    if layer < 0:
        return alpha
    alpha /= layers
    if layer <= math.ceil(layers / 8) - 1:
        alpha *= _FIRST_LAYERS_WEIGHT
    elif layer == layers - 1:
        alpha *= _LAST_LAYER_WEIGHT
    return alpha

"""Expected KL divergence before anything is measured: by type, tensor role and depth."""

import math
from collections.abc import Iterable, Mapping

from quantize.ggml_types import NEARLY_EXACT, TEST_TYPE, GgmlType
from quantize.plan.llama_cpp_preset_rules import TensorRole
from quantize.plan.llama_cpp_presets import layer_of, role_of
from quantize.tensor_rules import allows_quantization
from quantize.types import EvidenceRef, Interval, ModelSpec, Rounding, TensorError, TensorSpec

# KL divergence per unit of relative error, by role. Measured: sensitivity by in-place swaps on three trained models
# (tests/bench/results/role_alphas.jsonl). The head's value is that of a table that is also the embedding. The sum
# over a role's layers matters, so each layer gets its share. For keys and attention outputs that sum falls with
# depth: in these units it is 0.14 and 0.36 with 8 layers, 0.05 and 0.12 with 18, 0.05 and 0.04 with 30.
_ALPHA_OF_ROLE = {
    TensorRole.OUTPUT: 0.9,
    TensorRole.TOKEN_EMBD: 0.05,
    TensorRole.ATTN_V: 0.55,
    TensorRole.ATTN_OUTPUT: 0.32,
    TensorRole.FFN_DOWN: 0.28,
    TensorRole.ATTN_Q: 0.09,
    TensorRole.ATTN_K: 0.16,
    TensorRole.FFN_GATE: 0.17,
    TensorRole.FFN_UP: 0.18,
    TensorRole.OTHER: 0.3,
}
# The first layers count more, because their errors pass through all others. The last layer counts somewhat more,
# because its errors go directly into the head.
_FIRST_LAYERS_WEIGHT, _LAST_LAYER_WEIGHT = 1.5, 1.2
# Roles whose weight falls with depth, and the number of layers up to which it is the table's.
_FALLING_WITH_DEPTH, _SHALLOW_LAYERS = (TensorRole.ATTN_K, TensorRole.ATTN_OUTPUT), 8

# The overall sensitivity of models varies more than anything else: the loss was 1.5 to 48 times the sum of
# alpha times error. Measured: tests/bench/results/loss_range.jsonl, ten sizes of three models; Llama 3 8B's
# published losses are 3 times the sum. The middle of the range, and the factor to each of its ends:
TYPICAL_SCALE = 8.7
UNKNOWN_FACTOR = 6.5
# After the quick test (`quantize.measure.quick_loss`). Same measurement: the loss of a file is 0.87 times what the
# quick test predicts (geometric mean), and within a factor of two in 29 of 30 cases with the model excluded.
_OF_QUICK_TEST = 0.87
TESTED_FACTOR = 2.0

# The loss of a file from the errors of its rows. Fitted on 37 files of the bundled toy and SmolLM2, checked with
# files of Gemma 3: tests/bench/results/hub_loss.jsonl. First, how much a role's error counts there:
_ROWS_ALPHA_OF_ROLE = {
    TensorRole.OUTPUT: 0.9,
    TensorRole.TOKEN_EMBD: 0.15,
    TensorRole.ATTN_V: 0.8,
    TensorRole.ATTN_OUTPUT: 0.208,
    TensorRole.FFN_DOWN: 0.208,
    TensorRole.ATTN_Q: 0.1105,
    TensorRole.ATTN_K: 0.1105,
    TensorRole.FFN_GATE: 0.195,
    TensorRole.FFN_UP: 0.225,
    TensorRole.OTHER: 0.3,
}
# Rounding with an importance matrix or GPTQ reduces the error of the outputs, not of the weights.
_OF_IMATRIX, _OF_GPTQ = 0.7, 0.24
# Inputs are rounded to 8 bits, as the weights of this type are.
_INPUT_ERROR = NEARLY_EXACT.traits.error or 0.0
# The middle of the models' scales (1.5, 9.4 and 21) and the factor to their ends; the scale after a quick test, and
# the factor to the ends of that; and the factor within which the files of one model lie.
_ROWS_SCALE, _ROWS_UNKNOWN = 6.7, 6.5
_ROWS_OF_QUICK_TEST, _ROWS_TESTED = 0.8, 1.3
_ROWS_FACTOR = 2.0


def prior_damage(model: ModelSpec, quick_kld: float | None = None) -> dict[str, dict[str, float]]:
    """Expected KL divergence (nats per token) by tensor and type, for the tier that measures nothing.

    `quick_kld` is the result of the quick test of this model; without it, the model counts as a typical one.
    """
    tied = all(t.name != "output.weight" for t in model.tensors)
    errors = {t.name: t.traits.error for t in GgmlType if t.traits.error is not None}
    depth = min(1.0, _SHALLOW_LAYERS / max(1, model.num_layers))
    weights = _ALPHA_OF_ROLE | {role: _ALPHA_OF_ROLE[role] * depth for role in _FALLING_WITH_DEPTH}
    alphas = {t.name: _alpha(model, t, weights, tied=tied) for t in model.tensors if allows_quantization(t)}
    scale = TYPICAL_SCALE
    if quick_kld and alphas:
        scale = _OF_QUICK_TEST * quick_kld / (sum(alphas.values()) * errors[TEST_TYPE.name])
    return {
        name: {qtype: scale * alpha * error for qtype, error in errors.items()} for name, alpha in alphas.items()
    }


def loss_range(damage: float, evidence: EvidenceRef) -> tuple[float, float]:
    """The expected loss of a plan as (low, high); equal if this model's sensitivity was measured."""
    factor = TESTED_FACTOR if evidence.quick_test else UNKNOWN_FACTOR
    return (damage, damage) if evidence.sensitivity_sha256 else (damage / factor, damage * factor)


def rows_loss(
    model: ModelSpec,
    errors: Iterable[TensorError],
    *,
    rounding: str = "",
    imatrix: bool = False,
    quick_kld: float | None = None,
) -> tuple[Interval, float]:
    """Expected KL divergence of a file with these errors, and the factor that is common to all files of the model.

    `rounding` is how Tessera rounded the file, if it did; `imatrix`: another program used an importance matrix.
    `quick_kld` is the result of the model's quick test. The order of two files of one model is more certain than
    their intervals: the common factor does not change it.
    """
    tied = all(t.name != "output.weight" for t in model.tensors)
    alphas = {
        t.name: _alpha(model, t, _ROWS_ALPHA_OF_ROLE, tied=tied) for t in model.tensors if allows_quantization(t)
    }
    counted = [error for error in errors if error.name in alphas]
    # Exact sums: the order of the tensors in a file changes no digit.
    tested = math.fsum(alphas[e.name] * e.tested for e in counted)
    gain = _OF_GPTQ if rounding == Rounding.GPTQ else _OF_IMATRIX if imatrix else 1.0
    scale, common = _ROWS_SCALE, _ROWS_UNKNOWN
    if quick_kld and tested:
        scale, common = _ROWS_OF_QUICK_TEST * quick_kld / tested, _ROWS_TESTED
    weighted = math.fsum(alphas[e.name] * (gain * e.error + _INPUT_ERROR) for e in counted)
    deviation = math.sqrt(math.fsum((alphas[e.name] * gain * e.deviation) ** 2 for e in counted))
    sampling = 2 * deviation / weighted if weighted else 0.0
    factor = math.exp(math.hypot(math.log(common), math.log(_ROWS_FACTOR), math.log1p(sampling)))
    middle = scale * weighted
    return Interval(middle, middle / factor, middle * factor), common


def _alpha(model: ModelSpec, tensor: TensorSpec, weights: Mapping[TensorRole, float], *, tied: bool) -> float:
    role = role_of(tensor.name)
    if role is TensorRole.TOKEN_EMBD and tied:
        role = TensorRole.OUTPUT
    alpha = weights[role]
    layer, layers = layer_of(tensor.name), max(1, model.num_layers)
    if layer < 0:
        return alpha
    alpha /= layers
    if layer <= math.ceil(layers / 8) - 1:
        alpha *= _FIRST_LAYERS_WEIGHT
    elif layer == layers - 1:
        alpha *= _LAST_LAYER_WEIGHT
    return alpha

"""The type that a llama.cpp preset gives a tensor of each role.

Source: llama.cpp, src/llama-quant.cpp (llama_tensor_get_type_impl, llama_ftype_get_default_type), at the commit of
llama-cpp-python 0.3.36. MXFP4_MOE, NVFP4, Q1_0 and Q2_0 are formats rather than recipes and are omitted.
"""

from collections.abc import Callable
from enum import Enum, auto

import msgspec

from quantize.ggml_types import BLOCK_SIZES, GgmlType

T = GgmlType


class TensorRole(Enum):
    """Tensor categories of llama.cpp."""

    TOKEN_EMBD = auto()
    OUTPUT = auto()
    ATTN_Q = auto()
    ATTN_K = auto()
    ATTN_V = auto()  # attn_v, and the fused attn_qkv and attn_kv_b
    ATTN_OUTPUT = auto()
    FFN_UP = auto()
    FFN_GATE = auto()
    FFN_DOWN = auto()
    OTHER = auto()


class QuantPreset(msgspec.Struct, frozen=True):
    """A llama.cpp preset: its number (`general.file_type`) and the type of most tensors.

    `loss` is set for recommended presets: the quality loss, on a scale where an 8-bit KV cache costs 0.5 and
    halving the context 2. Source: the order of the KL divergences in log-archive.md, quantize.
    """

    ftype: int
    base: GgmlType
    loss: float | None = None


MIXES: dict[str, QuantPreset] = {
    "Q4_0": QuantPreset(2, T.Q4_0),
    "Q4_1": QuantPreset(3, T.Q4_1),
    "Q8_0": QuantPreset(7, T.Q8_0, loss=0.3),
    "Q5_0": QuantPreset(8, T.Q5_0),
    "Q5_1": QuantPreset(9, T.Q5_1),
    "Q2_K": QuantPreset(10, T.Q2_K, loss=12.0),
    "Q3_K_S": QuantPreset(11, T.Q3_K),
    "Q3_K_M": QuantPreset(12, T.Q3_K, loss=6.0),
    "Q3_K_L": QuantPreset(13, T.Q3_K),
    "Q4_K_S": QuantPreset(14, T.Q4_K),
    "Q4_K_M": QuantPreset(15, T.Q4_K, loss=2.5),
    "Q5_K_S": QuantPreset(16, T.Q5_K),
    "Q5_K_M": QuantPreset(17, T.Q5_K, loss=1.5),
    "Q6_K": QuantPreset(18, T.Q6_K, loss=0.8),
    "IQ2_XXS": QuantPreset(19, T.IQ2_XXS),
    "IQ2_XS": QuantPreset(20, T.IQ2_XS),
    "Q2_K_S": QuantPreset(21, T.Q2_K),
    "IQ3_XS": QuantPreset(22, T.IQ3_S),
    "IQ3_XXS": QuantPreset(23, T.IQ3_XXS),
    "IQ1_S": QuantPreset(24, T.IQ1_S),
    "IQ4_NL": QuantPreset(25, T.IQ4_NL),
    "IQ3_S": QuantPreset(26, T.IQ3_S),
    "IQ3_M": QuantPreset(27, T.IQ3_S),
    "IQ2_S": QuantPreset(28, T.IQ2_XS),
    "IQ2_M": QuantPreset(29, T.IQ2_S),
    "IQ4_XS": QuantPreset(30, T.IQ4_XS),
    "IQ1_M": QuantPreset(31, T.IQ1_M),
}
# Download order if nothing is known about the machine: the most popular preset, its neighbours, then any other.
USUAL_MIX = "Q4_K_M"
USUAL_LABELS = (
    USUAL_MIX, "UD-Q4_K_XL", "Q4_K_S", "IQ4_XS", "Q4_0", "Q5_K_M", "MXFP4", "Q8_0", "F16", "BF16", "safetensors",
)  # fmt: skip
# Presets that are widely known, and presets offered for simulated models.
WELL_KNOWN = frozenset({"Q2_K", "Q3_K_M", "IQ4_XS", "Q4_K_M", "Q5_K_M", "Q6_K"})
STAND_IN_MIXES = ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16")
LOW_MIXES = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"})
_LOW_UPPER = frozenset({"IQ2_S", "IQ2_M"})
_EIGHT_EXPERTS_Q5_OUTPUT = frozenset(
    {
        "Q2_K",
        "IQ3_XS",
        "IQ3_XXS",
        "Q3_K_S",
        "Q3_K_M",
        "IQ4_NL",
        "Q4_K_S",
        "Q4_K_M",
        "IQ3_S",
        "IQ3_M",
        "IQ4_XS",
    }
)


class Layer(msgspec.Struct, frozen=True):
    """A tensor's position, and properties of the model.

    `index` counts tensors of the role in file order (for models with experts: the layer); `count` is the number of
    them.
    """

    index: int
    count: int
    gqa: int
    num_experts: int
    has_imatrix: bool
    falcon: bool
    is_70b: bool

    @property
    def gets_more_bits(self) -> bool:
        """Whether the layer is in the first or last eighth, or every third one between."""
        i, eighth, third_of_three = self.index, self.count // 8, 2
        return i < eighth or i >= 7 * self.count // 8 or _remainder(i - eighth) == third_of_three

    def in_first(self, parts: int) -> bool:
        """Whether this is one of the first 1/parts of the layers."""
        return self.index < self.count // parts


def _remainder(value: int) -> int:
    """C's remainder of a division by three, which keeps the sign."""
    return value % 3 if value >= 0 else -(-value % 3)


def mix_type(mix: str, role: TensorRole, at: Layer, row_values: int, *, tied_head: bool) -> GgmlType:
    """The type that preset `mix` gives a tensor of `role`, before llama.cpp checks the row length."""
    base = MIXES[mix].base
    if role is TensorRole.OUTPUT or (tied_head and role is TensorRole.TOKEN_EMBD):
        return _head(mix, base, row_values, falcon=at.falcon)
    if role is TensorRole.TOKEN_EMBD:
        return _embedding(mix, base)
    rules = _LOW_RULES if mix in LOW_MIXES else _RULES
    rule = rules.get(role)
    return base if rule is None else rule(mix, at, base)


def _head(mix: str, base: GgmlType, row_values: int, *, falcon: bool) -> GgmlType:
    if falcon or row_values % BLOCK_SIZES[base][0]:
        return T.Q8_0
    if mix in LOW_MIXES or mix == "IQ3_XXS":
        return T.Q5_K
    return base if base is T.Q8_0 else T.Q6_K


def _embedding(mix: str, base: GgmlType) -> GgmlType:
    if mix in {"IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"}:
        return T.Q2_K
    return T.IQ3_S if mix in _LOW_UPPER or mix == "IQ3_XXS" else base


def _low_attn_v(mix: str, at: Layer, _base: GgmlType) -> GgmlType:
    if at.gqa >= 4 or at.num_experts >= 4:
        return T.Q4_K
    return T.IQ3_S if mix in _LOW_UPPER else T.Q2_K


def _low_attn_k(_mix: str, at: Layer, base: GgmlType) -> GgmlType:
    return T.Q4_K if _eight(at) else base


def _low_ffn_down(mix: str, at: Layer, base: GgmlType) -> GgmlType:
    if at.in_first(8):
        return T.IQ3_S if mix in _LOW_UPPER else T.Q2_K
    return base


def _low_attn_output(mix: str, at: Layer, base: GgmlType) -> GgmlType:
    if _eight(at):
        return T.Q5_K
    if mix in {"IQ1_S", "IQ1_M"}:
        return T.IQ2_XXS
    return T.IQ3_S if mix in _LOW_UPPER else base


def _eight(at: Layer) -> bool:
    return at.num_experts == 8


def _attn_v(mix: str, at: Layer, base: GgmlType) -> GgmlType:
    qtype = _attn_v_dense(mix, at, base)
    if at.is_70b and qtype in {T.Q3_K, T.Q4_K}:
        qtype = T.Q5_K
    return T.Q8_0 if _eight(at) else qtype


def _attn_v_dense(mix: str, at: Layer, base: GgmlType) -> GgmlType:
    grouped = at.gqa >= 4
    first_wins: tuple[tuple[bool, GgmlType], ...] = (
        (mix == "Q2_K", T.Q4_K if grouped else T.Q3_K),
        (mix == "Q2_K_S" and grouped, T.Q4_K),
        (mix == "IQ3_XXS", T.Q4_K if grouped else (T.IQ3_XXS if at.has_imatrix else T.IQ3_S)),
        (mix in {"IQ3_XS", "IQ3_S"} and grouped, T.Q4_K),
        (mix == "IQ3_M", T.Q4_K),
        (mix == "Q3_K_M", T.Q5_K if at.index < 2 else T.Q4_K),
        (mix == "Q3_K_L", T.Q5_K),
        (mix in {"IQ4_NL", "IQ4_XS"} and grouped, T.Q5_K),
        (mix in {"Q4_K_M", "Q5_K_M"} and at.gets_more_bits, T.Q6_K),
        (mix == "Q4_K_S" and at.index < 4, T.Q5_K),
    )
    return next((qtype for holds, qtype in first_wins if holds), base)


def _attn_k(mix: str, at: Layer, base: GgmlType) -> GgmlType:
    return T.Q8_0 if _eight(at) else _attn_q(mix, at, base)


def _attn_q(mix: str, _at: Layer, base: GgmlType) -> GgmlType:
    return {"IQ3_XS": T.IQ3_XXS, "IQ3_XXS": T.IQ2_S}.get(mix, base)


def _ffn_down(mix: str, at: Layer, base: GgmlType) -> GgmlType:
    first_wins: tuple[tuple[bool, GgmlType], ...] = (
        (mix == "Q2_K", T.Q3_K),
        (mix == "Q2_K_S" and at.in_first(8), T.Q4_K),
        (mix == "IQ3_XXS" and not at.has_imatrix, T.Q4_K if at.in_first(8) else T.Q3_K),
        (mix == "Q3_K_M" and at.in_first(16), T.Q5_K),
        (mix == "Q3_K_M" and (not at.falcon or at.gets_more_bits), T.Q4_K),
        (mix == "IQ3_M" and (at.in_first(8) or (_eight(at) and at.gets_more_bits)), T.Q4_K),
        (mix == "Q3_K_L", T.Q4_K if at.falcon else T.Q5_K),
        (mix == "Q4_K_M" and at.falcon and not at.in_first(16), T.Q5_K if at.gets_more_bits else T.Q4_K),
        (mix == "Q4_K_M" and (at.falcon or at.gets_more_bits), T.Q6_K),
        (mix in {"IQ4_NL", "IQ4_XS"} and at.in_first(8) and not at.has_imatrix, T.Q5_K),
        (mix == "Q5_K_M" and at.gets_more_bits, T.Q6_K),
        (mix == "Q4_K_S" and not at.falcon and at.in_first(8), T.Q5_K),
        (mix == "Q4_0" and at.has_imatrix and at.in_first(8), T.Q4_1),
        (mix == "Q5_0" and at.has_imatrix and at.in_first(8), T.Q5_1),
    )
    return next((qtype for holds, qtype in first_wins if holds), base)


def _attn_output(mix: str, at: Layer, base: GgmlType) -> GgmlType:
    if at.falcon:
        return T.Q4_K if mix == "Q3_K_L" else base
    if _eight(at):
        return T.Q5_K if mix in _EIGHT_EXPERTS_Q5_OUTPUT else base
    table = {"Q2_K": T.Q3_K, "IQ3_XXS": T.IQ3_S, "Q3_K_M": T.Q4_K, "Q3_K_L": T.Q5_K, "IQ3_M": T.Q4_K}
    return table.get(mix, base)


def _ffn_gate_up(mix: str, at: Layer, base: GgmlType) -> GgmlType:
    middle = at.count // 8 <= at.index < 7 * at.count // 8
    return T.IQ3_XXS if mix == "IQ3_XS" and middle else base


_Rule = Callable[[str, Layer, GgmlType], GgmlType]
_LOW_RULES: dict[TensorRole, _Rule] = {
    TensorRole.ATTN_V: _low_attn_v,
    TensorRole.ATTN_K: _low_attn_k,
    TensorRole.FFN_DOWN: _low_ffn_down,
    TensorRole.ATTN_OUTPUT: _low_attn_output,
}
_RULES: dict[TensorRole, _Rule] = {
    TensorRole.ATTN_V: _attn_v,
    TensorRole.ATTN_K: _attn_k,
    TensorRole.ATTN_Q: _attn_q,
    TensorRole.ATTN_OUTPUT: _attn_output,
    TensorRole.FFN_DOWN: _ffn_down,
    TensorRole.FFN_GATE: _ffn_gate_up,
    TensorRole.FFN_UP: _ffn_gate_up,
}

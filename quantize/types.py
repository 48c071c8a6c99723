"""Data types shared by the quantizer's modules: tensors, size targets, plans and reports."""

from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

Tier = Literal["instant", "balanced", "max"]
GoalKind = Literal["budget", "fit", "bpw", "mix"]
DeviceKind = Literal["cpu", "gpu", "npu"]
# Type of most tensors of a converted model; "auto" follows the source (see `quantize.convert.folder`).
FloatType = Literal["auto", "F16", "BF16", "F32"]


class Rounding(StrEnum):
    """The rounding method.

    `STOCK` writes the same bytes as llama-quantize with the importance matrix. `ROWS` tries three exponents of the
    importance matrix and takes the best one per row. `GPTQ` keeps ggml's scales and chooses the integers with the
    Hessian.
    """

    STOCK = "stock"
    ROWS = "rows"
    GPTQ = "gptq"

    @classmethod
    def _missing_(cls, value: object) -> "Rounding | None":
        """Map names from plans, reports, measurements and scripts of earlier versions."""
        return cls.GPTQ if value == "craft" else None


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor of a model, as described in the file header.

    `shape` is in ggml order: shape[0] is the row length. A stack of experts has three dimensions. `qtype` is the
    GGML type's name ("F16", "Q4_K").
    """

    name: str
    shape: tuple[int, ...]
    qtype: str

    @property
    def row_values(self) -> int:
        return self.shape[0]

    @property
    def num_rows(self) -> int:
        """Number of rows, over all experts."""
        rows = 1
        for extent in self.shape[1:]:
            rows *= extent
        return rows

    @property
    def num_values(self) -> int:
        return self.row_values * self.num_rows


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a model that determine its quantization recipe.

    `num_heads` and `num_kv_heads` are those of the first layer, as in llama.cpp's rules.
    """

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    num_experts: int = 0
    tensors: tuple[TensorSpec, ...] = ()


class TypeOverride(msgspec.Struct, frozen=True):
    """A type set by the user for all tensors whose name matches `pattern` (a regular expression).

    With `at_least` the type is a minimum of bits per weight, otherwise the exact type.
    """

    pattern: str
    qtype: str
    at_least: bool = False


class KvOption(msgspec.Struct, frozen=True):
    """A KV cache type: types of K and V, bytes at the requested context length, and `damage` as KL divergence."""

    type_k: str
    type_v: str
    num_bytes: int
    damage: float


class SizeTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The goal of a plan.

    `limit_bytes` limits the whole file ("budget", "bpw"), or weights plus KV cache ("fit"). For "fit",
    `fixed_bytes` is the other memory that a load needs; `limit_bytes` already excludes it. `mix` names a llama.cpp
    preset or a single type for all tensors.
    """

    kind: GoalKind
    limit_bytes: int | None = None
    fixed_bytes: int = 0
    n_ctx: int | None = None
    n_seq: int = 1
    bpw: float | None = None
    mix: str | None = None


class EvidenceRef(msgspec.Struct, frozen=True, kw_only=True):
    """Hashes of the measurements behind a plan's KL divergences, so that the plan can be rebuilt.

    `quick_test`: the divergences come from other models, scaled by a quick test of this one.
    """

    tier: Tier
    has_imatrix: bool
    imatrix_sha256: str = ""
    sensitivity_sha256: str = ""
    gptq: bool = msgspec.field(default=False, name="crafted")
    note: str = ""
    quick_test: bool = False


class TensorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The type chosen for one tensor. `num_bytes` is unaligned; `wanted` is the type before a fallback.

    `exact`: the source's weights already lie on a grid of this type, and lose nothing. It names the smallest type
    with that grid; empty: they lose something. `added_rows` are on no grid, such as those of tokens that were added
    after the training, and lose as in any file of this type.
    """

    name: str
    shape: tuple[int, ...]
    source_qtype: str
    qtype: str
    num_bytes: int
    damage: float
    locked: bool = False
    wanted: str | None = None
    exact: str = ""
    added_rows: int = 0


class PresetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A llama.cpp preset applied to the same model. `file_bytes` is the size of the whole file.

    `damage` is the KL divergence predicted from the same measurements. It is None if they do not cover every type
    of the preset.
    """

    name: str
    file_bytes: int
    damage: float | None
    needs_imatrix: bool = False
    types: dict[str, str] = {}


class QuantPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A type for every tensor, with enough information to explain and rebuild the file.

    `file_bytes` is the exact size of the finished file, `smallest_bytes` the smallest possible size. `gap` is the
    maximum difference in KL divergence from the optimal plan (0: proved optimal). `decode_cost` is the decoding
    time per token, relative to the same model in Q4_K throughout.
    """

    version: int = 1
    architecture: str
    goal: SizeTarget
    evidence: EvidenceRef
    tensors: tuple[TensorPlan, ...]
    kv: KvOption | None = None
    header_bytes: int
    file_bytes: int
    smallest_bytes: int
    damage: float
    gap: float = 0.0
    decode_cost: float = 1.0
    device: str = "cpu"
    locks: tuple[TypeOverride, ...] = ()
    stock: tuple[PresetPlan, ...] = ()
    best_stock: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def bpw(self) -> float:
        """Bits per weight over the file's tensors."""
        values = sum(_values(t.shape) for t in self.tensors)
        return 8 * sum(t.num_bytes for t in self.tensors) / max(1, values)

    @property
    def types(self) -> dict[str, str]:
        return {t.name: t.qtype for t in self.tensors}

    @property
    def exact(self) -> frozenset[str]:
        """Tensors whose weights lose nothing, because they already lie on a grid of their type."""
        return frozenset(t.name for t in self.tensors if t.exact)

    @property
    def added_rows(self) -> int:
        """Rows of these tensors that are on no grid."""
        return sum(t.added_rows for t in self.tensors)


def _values(shape: tuple[int, ...]) -> int:
    values = 1
    for extent in shape:
        values *= extent
    return values


class Interval(msgspec.Struct, frozen=True):
    """A value with its 95 % interval over resampled texts."""

    value: float
    low: float
    high: float


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """Difference between one file's predictions and the reference's on held-out text.

    KL divergences are in nats per token. `top1_agreement_frac` is the fraction of positions with the same top
    token. Perplexities are of the text itself. Intervals come from a bootstrap over text windows. `ratio` is the
    mean KL divergence divided by that of the last file of the same comparison, paired by window. It is None if only
    one file was measured.
    """

    path: str
    file_bytes: int
    tokens: int
    kld_mean: Interval
    kld_median: float
    kld_p99: float
    kld_p999: float
    top1_agreement_frac: Interval
    perplexity: Interval
    reference_perplexity: float
    ratio: Interval | None = None


class QuickLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Mean KL divergence (nats per token) with every quantizable weight rounded to `TEST_TYPE`."""

    kld: float
    tokens: int


class TensorError(msgspec.Struct, frozen=True, kw_only=True):
    """Relative squared error of some rows of a tensor against those of the original, and its standard error.

    `tested` is the error of the same rows if they are rounded to `TEST_TYPE`. `finite` is false if a value is
    NaN or infinite.
    """

    name: str
    error: float
    deviation: float
    tested: float
    finite: bool = True


# Bundled texts: one for calibration, one held out for evaluation.

_TEXTS = Path(__file__).resolve().parent.parent / "assets" / "text"
CALIBRATION = _TEXTS / "calibration.txt"
HELD_OUT = _TEXTS / "heldout.txt"

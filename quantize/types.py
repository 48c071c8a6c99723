"""What the quantizer's parts hand to each other: tensors, budgets, plans, reports."""

from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

Tier = Literal["instant", "balanced", "max"]
GoalKind = Literal["budget", "fit", "bpw", "mix"]
DeviceKind = Literal["cpu", "gpu", "npu"]
# What a converted model is mostly of; "auto": what its folder has.
FloatType = Literal["auto", "F16", "BF16", "F32"]


class Rounding(StrEnum):
    """How weights are rounded.

    `STOCK` is byte for byte what llama-quantize writes with the importance matrix; `ROWS` gives each row the best
    of three exponents of it; `GPTQ` chooses integers against second moments, on the scales that ggml chose.
    """

    STOCK = "stock"
    ROWS = "rows"
    GPTQ = "gptq"

    @classmethod
    def _missing_(cls, value: object) -> "Rounding | None":
        """What plans, reports, measurements and scripts of earlier versions say."""
        return cls.GPTQ if value == "craft" else None


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor of a model, as its header says.

    `shape` is in ggml order: shape[0] is the row length; a stack of experts has three dimensions.
    `qtype` is the GGML type's name ("F16", "Q4_K").
    """

    name: str
    shape: tuple[int, ...]
    qtype: str

    @property
    def row_values(self) -> int:
        """Values in one row."""
        return self.shape[0]

    @property
    def num_rows(self) -> int:
        """Rows over all experts."""
        rows = 1
        for extent in self.shape[1:]:
            rows *= extent
        return rows

    @property
    def num_values(self) -> int:
        """Values in the tensor."""
        return self.row_values * self.num_rows


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a model that decide a mix.

    `num_heads` and `num_kv_heads` are the first layer's, as llama.cpp's own rules use them.
    """

    architecture: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    num_experts: int = 0
    tensors: tuple[TensorSpec, ...] = ()


class Lock(msgspec.Struct, frozen=True):
    """A user's wish for the tensors whose name `pattern` (a regular expression) finds.

    `at_least`: the type is a minimum of bits a weight, not the exact type.
    """

    pattern: str
    qtype: str
    at_least: bool = False


class KvOption(msgspec.Struct, frozen=True):
    """One way to store the KV cache: types of K and V, bytes at the promised context, damage in KLD."""

    type_k: str
    type_v: str
    num_bytes: int
    damage: float


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan was asked for.

    `limit_bytes` bounds the whole file ("budget", "bpw"), or weights and KV cache together ("fit"; what else
    a load needs is `fixed_bytes` and already taken off). `mix` names a stock mix or a uniform type.
    """

    kind: GoalKind
    limit_bytes: int | None = None
    fixed_bytes: int = 0
    n_ctx: int | None = None
    n_seq: int = 1
    bpw: float | None = None
    mix: str | None = None


class EvidenceRef(msgspec.Struct, frozen=True, kw_only=True):
    """What the damage figures rest on, by hash, so that a plan can be rebuilt."""

    tier: Tier
    has_imatrix: bool
    imatrix_sha256: str = ""
    sensitivity_sha256: str = ""
    gptq: bool = msgspec.field(default=False, name="crafted")
    note: str = ""


class TensorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about one tensor. `num_bytes` is unaligned; `wanted` is the type before a fallback."""

    name: str
    shape: tuple[int, ...]
    source_qtype: str
    qtype: str
    num_bytes: int
    damage: float
    locked: bool = False
    wanted: str | None = None


class StockPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A stock mix of llama.cpp on the same model: bytes of the whole file, damage by the same evidence.

    `damage` None: the evidence does not cover every type of the mix.
    """

    name: str
    file_bytes: int
    damage: float | None
    needs_imatrix: bool = False
    types: dict[str, str] = {}


class QuantPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A precision for every tensor, and why: enough to explain and rebuild the file.

    `file_bytes` is the exact size of the finished file, `smallest_bytes` that of the smallest possible one.
    `gap` is how far, in damage, the plan may be from the best one (0: proved optimal).
    `decode_cost` is time for one token relative to the same model all in Q4_K.
    """

    version: int = 1
    architecture: str
    goal: Goal
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
    locks: tuple[Lock, ...] = ()
    stock: tuple[StockPlan, ...] = ()
    best_stock: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def bpw(self) -> float:
        """Bits of the file's tensors for each weight."""
        values = sum(_values(t.shape) for t in self.tensors)
        return 8 * sum(t.num_bytes for t in self.tensors) / max(1, values)

    @property
    def types(self) -> dict[str, str]:
        """Tensor name to type name."""
        return {t.name: t.qtype for t in self.tensors}


def _values(shape: tuple[int, ...]) -> int:
    values = 1
    for extent in shape:
        values *= extent
    return values


class Interval(msgspec.Struct, frozen=True):
    """A figure and the bounds between which it lies in 95 % of resampled texts."""

    value: float
    low: float
    high: float


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """How one file's predictions differ from the reference's on held-out text.

    KL divergences in nats a token; `top1_agreement_frac` is how often the likeliest token is the same; perplexities
    are of the text itself. Intervals are by bootstrap over windows of text. `ratio` is the mean KL divergence over
    that of the last file of the same comparison, window by window; None where it stood alone.
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


# The texts that come with the project: one to fit to, another to judge by.

_TEXTS = Path(__file__).resolve().parent.parent / "assets" / "text"
CALIBRATION = _TEXTS / "calibration.txt"
HELD_OUT = _TEXTS / "heldout.txt"

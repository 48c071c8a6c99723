"""/tessera/v1/quantize: making a model fit."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.paths import DEFAULT_CONTEXT
from quantize.job.request import Forecast, QuantizeReport
from quantize.types import FileReport, QuantPlan, Rounding, StockPlan, TensorPlan, Tier

__all__ = [
    "DEFAULT_CONTEXT",
    "FileReport",
    "Forecast",
    "LockRequest",
    "PlanForecast",
    "QuantPlan",
    "QuantizeReport",
    "QuantizeRequest",
    "QuantizeSketch",
    "StockPlan",
    "TensorPlan",
    "Tier",
]

Bytes = Annotated[int, Meta(ge=1, le=1 << 50)]


class LockRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A type for the tensors whose name `pattern` finds; a minimum if `at_least`."""

    pattern: Annotated[str, Meta(min_length=1, max_length=200)]
    type: Annotated[str, Meta(min_length=1, max_length=20)]
    at_least: bool = False


class QuantizeRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/quantize and /plan: a model of the library and one goal. `tier` as in `tessera quantize`.

    `fit`: so that `n_seq` contexts of `n_ctx` fit beside the weights, their cache in `kv_type` (null: the best).
    """

    model: Annotated[str, Meta(min_length=1, max_length=500)]
    tier: Tier = "balanced"
    budget_bytes: Bytes | None = None
    bpw: Annotated[float, Meta(ge=0.5, le=32)] | None = None
    mix: Annotated[str, Meta(min_length=1, max_length=20)] | None = None
    force: bool = False
    fit: bool = False
    memory_bytes: Bytes | None = None
    n_ctx: Annotated[int, Meta(ge=256, le=1 << 24)] = DEFAULT_CONTEXT
    n_seq: Annotated[int, Meta(ge=1, le=256)] = 1
    kv_type: Literal["f16", "q8_0", "q5_1", "q4_0"] | None = None
    locks: Annotated[tuple[LockRequest, ...], Meta(max_length=100)] = ()
    rounding: Rounding | None = None


class PlanForecast(Forecast, frozen=True, kw_only=True):
    """What a job should take, and the largest context that fits beside the file here (None: not known)."""

    largest_context: int | None = None


class QuantizeSketch(QuantizeReport, frozen=True, kw_only=True):
    """POST /tessera/v1/quantize/plan: the likely plan; nothing was measured or written."""

    forecast: PlanForecast

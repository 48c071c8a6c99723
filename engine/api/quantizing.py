"""/tessera/v1/quantize: making a model fit."""

from engine.core.defaults import DEFAULT_CONTEXT
from engine.job_kinds.quantize.options import LockRequest, QuantizeOptions
from quantize.job.request import Forecast, QuantizeReport
from quantize.types import FileReport, QuantPlan, StockPlan, TensorPlan, Tier

__all__ = [
    "DEFAULT_CONTEXT",
    "FileReport",
    "Forecast",
    "LockRequest",
    "PlanForecast",
    "QuantPlan",
    "QuantizeOptions",
    "QuantizeReport",
    "QuantizeSketch",
    "StockPlan",
    "TensorPlan",
    "Tier",
]


class PlanForecast(Forecast, frozen=True, kw_only=True):
    """What a job should take, and the largest context that fits beside the file here (None: not known)."""

    largest_context: int | None = None


class QuantizeSketch(QuantizeReport, frozen=True, kw_only=True):
    """POST /tessera/v1/quantize/plan: the likely plan; nothing was measured or written."""

    forecast: PlanForecast

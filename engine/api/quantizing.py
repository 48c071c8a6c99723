"""/tessera/v1/quantize: quantization of models."""

from engine.core.defaults import DEFAULT_CONTEXT
from engine.job_kinds.quantize.options import LockRequest, QuantizeOptions
from quantize.job.request import Forecast, QuantizeReport
from quantize.types import FileReport, PresetPlan, QuantPlan, TensorPlan, Tier


class PlanForecast(Forecast, frozen=True, kw_only=True):
    """Expected cost of a job, and the largest context that fits on this computer with the file (None: unknown)."""

    largest_context: int | None = None


class QuantizeSketch(QuantizeReport, frozen=True, kw_only=True):
    """POST /tessera/v1/quantize/plan: the likely plan; nothing is measured or written."""

    forecast: PlanForecast

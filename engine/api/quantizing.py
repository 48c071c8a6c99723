"""/tessera/v1/quantize: making a model fit."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.api.library import Place
from engine.defaults import DEFAULT_CONTEXT
from engine.quantize_jobs.options import QuantizeOptions
from quantize.job.request import Forecast, QuantizeReport
from quantize.types import DeviceKind, FileReport, QuantPlan, Rounding, StockPlan, TensorPlan, Tier

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
    """POST /tessera/v1/quantize and /plan: a model of the library, or the whole path of one here, and one goal.

    `tier` as in `tessera quantize` (null: instant for a mix by name, else balanced). `fit`: so that `n_seq`
    contexts of `n_ctx` fit beside the weights, their cache in `kv_type` (null: the best). `time_s`: a time to
    spend, which decides the tier. `out`, `calibration`, `own_text` (to judge by too), `imatrix`, `plan_file` (a
    goal by itself) and `export_plan` are whole paths on this computer; without `out` the file joins the library.
    `calibration` may be a folder: its text is mixed half and half with ours, and a part of it judged by.
    `gpu_layers`: evaluated on the GPU while measuring and comparing (null: as dispatch would load the source).
    `gate`: `certify`, `evaluate` (runs programs the model writes, in the sandbox) or the whole path of a file of
    tasks; a file that does it clearly worse than the source is not kept (then the result's `path` is empty).
    """

    model: Place
    out: Place | None = None
    overwrite: bool = False
    tier: Tier | None = "balanced"
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
    time_s: Annotated[float, Meta(gt=0, le=1e7)] | None = None
    device: DeviceKind = "cpu"
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    gpu_layers: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    verify: bool | None = None
    calibration: Place | None = None
    own_text: Place | None = None
    imatrix: Place | None = None
    plan_file: Place | None = None
    export_plan: Place | None = None
    gate: Place | None = None

    def options(self) -> QuantizeOptions:
        """The engine's own record."""
        given = msgspec.structs.asdict(self)
        given["locks"] = tuple((lock.pattern, lock.type, lock.at_least) for lock in self.locks)
        return QuantizeOptions(source=given.pop("model"), **given)


class PlanForecast(Forecast, frozen=True, kw_only=True):
    """What a job should take, and the largest context that fits beside the file here (None: not known)."""

    largest_context: int | None = None


class QuantizeSketch(QuantizeReport, frozen=True, kw_only=True):
    """POST /tessera/v1/quantize/plan: the likely plan; nothing was measured or written."""

    forecast: PlanForecast

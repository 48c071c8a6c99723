"""Making a model of the library fit: a forecast at once, the file itself as a job."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec

import quantize.errors
from engine.dispatch.resources import Resources
from engine.errors import EnvironmentFault, InputFault
from engine.jobs import Control, JobKind, JobRegistry
from engine.library.catalogue import Catalogue
from engine.library.lookup import require
from engine.library.types import ModelEntry, Origin
from engine.quantize_jobs.options import QuantizeOptions
from quantize.evidence import Progress
from quantize.job.request import QuantizeReport

_BAR = 1000  # steps of the one bar of a job


def register(registry: JobRegistry, open_catalogue: Callable[[], Catalogue], resources: Resources) -> None:
    """Teach a registry the kind `quantize`: one at a time, for it takes every core."""

    def run(params: dict[str, Any], control: Control) -> dict[str, Any]:
        with closing(open_catalogue()) as catalogue:
            return make(catalogue, msgspec.convert(params, QuantizeOptions), control, resources)

    registry.register(JobKind.QUANTIZE, run, parallel=1)


def predict(catalogue: Catalogue, options: QuantizeOptions, resources: Resources) -> QuantizeReport:
    """The likely plan, from what is known about this model so far; nothing is measured or written.

    Without a goal the plan is the largest one, whose `smallest_bytes` bounds what can be asked for.

    Raises: InputFault, EnvironmentFault: the model or the options.
    """
    from engine.quantize_jobs.request import build_request, in_library  # noqa: PLC0415 - not while the server starts
    from quantize.job.execute import quantize as run_quantize  # noqa: PLC0415 - as above

    entry = _source(catalogue, options.source)
    if not options.goals:
        options = msgspec.structs.replace(options, budget_bytes=max(entry.size_bytes, 1))
    try:
        out = in_library(entry, options, catalogue.paths)
        preview = build_request(
            msgspec.structs.replace(options, plan_only=True), entry.path, out, catalogue.paths, resources
        )
        return run_quantize(preview, lambda _: None, lambda: False)
    except quantize.errors.QuantizeError as error:
        raise _engine_error(error) from error


def make(catalogue: Catalogue, options: QuantizeOptions, control: Control, resources: Resources) -> dict[str, Any]:
    """Make the file and list it. Raises: the quantizer's errors; Cancelled and Paused from `control`."""
    from engine.quantize_jobs.request import build_request, in_library  # noqa: PLC0415 - not while the server starts
    from quantize.job.execute import quantize as run_quantize  # noqa: PLC0415 - as above

    entry = _source(catalogue, options.source)
    out = in_library(entry, options, catalogue.paths)
    request = build_request(options, entry.path, out, catalogue.paths, resources)

    def progress(at: Progress) -> None:
        control.report(at.phase, round(_BAR * (at.share or 0.0)), _BAR, "", at.detail)

    try:
        report = run_quantize(request, progress, lambda: control.stopping)
    except quantize.errors.Cancelled:
        control.check()  # a pause, not a cancellation
        raise
    made = catalogue.add(out, Origin(kind="built"))
    return {"model": made.id, "path": str(made.path), "report": as_json(report)}


def as_json(report: QuantizeReport) -> dict[str, Any]:
    """A report as plain values."""
    told: dict[str, Any] = msgspec.to_builtins(report, enc_hook=str)
    return told


def _source(catalogue: Catalogue, model: str) -> ModelEntry:
    entry = require(catalogue, model)
    if entry.state != "online":
        raise EnvironmentFault(f"{entry.id} is {entry.state}: {entry.problem or 'its drive is not connected'}")
    return entry


def _engine_error(error: quantize.errors.QuantizeError) -> Exception:
    """The quantizer's error as the server answers it."""
    if isinstance(error, quantize.errors.InputFault):
        fault = InputFault(str(error))
        fault.code = error.code
        return fault
    return EnvironmentFault(str(error))

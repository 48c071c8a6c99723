"""Making a model of the library fit: a forecast at once, the file itself as a job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

import quantize.errors
from engine.errors import EnvironmentFault, InputFault
from engine.jobs import Control, JobRegistry
from engine.library.catalogue import Catalogue
from engine.library.errors import CannotWrite
from engine.library.lookup import require
from engine.library.types import ModelEntry, Origin
from quantize.evidence import Progress, Rounding
from quantize.job import QuantizeReport, QuantizeRequest
from quantize.texts import CALIBRATION, HELD_OUT
from quantize.types import Goal, Lock, Tier

KIND = "quantize"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: a model of the library, and one of a size, bits a weight, a mix by name, or to fit.

    `fit` is for `n_seq` sequences of `n_ctx` tokens in `memory_bytes` (None: what is free), their cache stored in
    `kv_type` (None: the solver chooses). `locks` are (pattern, type, whether it is a minimum).
    """

    model: str
    tier: Tier = "balanced"
    budget_bytes: int | None = None
    bpw: float | None = None
    mix: str | None = None
    force: bool = False
    fit: bool = False
    memory_bytes: int | None = None
    n_ctx: int = 8192
    n_seq: int = 1
    kv_type: str | None = None
    locks: tuple[tuple[str, str, bool], ...] = ()
    rounding: Rounding | None = None

    def goal(self) -> Goal:
        """The quantizer's goal. Raises: InputFault: more than one wish."""
        given = [name for name in ("budget_bytes", "bpw", "mix") if getattr(self, name) is not None]
        given += ["fit"] if self.fit else []
        if len(given) > 1:
            raise InputFault(f"Give one of budget_bytes, bpw, mix and fit, not {' and '.join(given)}.", given[1])
        if self.mix is not None:
            return Goal(kind="mix", mix=self.mix.upper())
        if self.bpw is not None:
            return Goal(kind="bpw", bpw=self.bpw)
        return Goal(kind="budget", limit_bytes=self.budget_bytes)


def register(registry: JobRegistry, open_catalogue: Callable[[], Catalogue]) -> None:
    """Teach a registry the kind `quantize`: one at a time, for it takes every core."""
    registry.register(
        KIND, lambda params, control: make(open_catalogue(), msgspec.convert(params, Wish), control), parallel=1
    )


def predict(catalogue: Catalogue, wish: Wish) -> QuantizeReport:
    """The likely plan, from what is known about this model so far; nothing is measured or written.

    Without any wish for a size the plan is the largest one, whose `smallest_bytes` bounds what can be asked for.

    Raises: InputFault, EnvironmentFault: the model or the wish.
    """
    entry = _source(catalogue, wish)
    if wish.budget_bytes is None and wish.bpw is None and wish.mix is None and not wish.fit:
        wish = msgspec.structs.replace(wish, budget_bytes=max(entry.size_bytes, 1))
    from quantize.execute import quantize as run_quantize  # noqa: PLC0415 - not while the server starts

    try:
        preview = msgspec.structs.replace(_request(catalogue, entry, wish), plan_only=True)
        return run_quantize(preview, lambda _: None, lambda: False)
    except quantize.errors.QuantizeError as error:
        raise _engine_error(error) from error


def make(catalogue: Catalogue, wish: Wish, control: Control) -> dict[str, Any]:
    """Make the file and list it. Raises: the quantizer's errors; Cancelled and Paused from `control`."""
    from quantize.execute import quantize as run_quantize  # noqa: PLC0415 - not while the server starts

    entry = _source(catalogue, wish)
    request = _request(catalogue, entry, wish)

    def progress(at: Progress) -> None:
        share = at.done / at.total if at.total else 0.0
        control.report(at.phase, round(100 * share), 100, "%", at.detail)

    try:
        report = run_quantize(request, progress, lambda: control.stopping)
    except quantize.errors.Cancelled:
        control.check()  # a pause, not a cancellation
        raise
    made = catalogue.add(request.out, Origin(kind="built"))
    return {"model": made.id, "path": str(made.path), "report": as_json(report)}


def as_json(report: QuantizeReport) -> dict[str, Any]:
    """A report as plain values."""
    told: dict[str, Any] = msgspec.to_builtins(report, enc_hook=str)
    return told


def _source(catalogue: Catalogue, wish: Wish) -> ModelEntry:
    entry = require(catalogue, wish.model)
    if entry.state != "online":
        raise EnvironmentFault(f"{entry.id} is {entry.state}: {entry.problem or 'its drive is not connected'}")
    return entry


def _request(catalogue: Catalogue, entry: ModelEntry, wish: Wish) -> QuantizeRequest:
    from engine.quantize_work import machine_fit, measured_speeds  # noqa: PLC0415 - as above

    folder = catalogue.paths.models / "local"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(str(folder), error.strerror or str(error)) from error
    fitted = None
    if wish.fit:
        fitted = machine_fit(entry.path, catalogue.paths, wish.n_ctx, wish.n_seq, wish.memory_bytes)
    return QuantizeRequest(
        source=entry.path,
        out=_free_name(folder, entry, wish),
        goal=fitted.goal if fitted else wish.goal(),
        kv=tuple(o for o in fitted.kv if wish.kv_type in {None, o.type_k}) if fitted else (),
        doubled_head_types=fitted.doubled_head_types if fitted else (),
        locks=tuple(Lock(pattern, qtype.upper(), least) for pattern, qtype, least in wish.locks),
        rounding=wish.rounding,
        calibration=CALIBRATION,
        held_out=HELD_OUT,
        cache_dir=catalogue.paths.cache / "quantize",
        tier=wish.tier,
        speeds=measured_speeds(catalogue.paths),
        threads=psutil.cpu_count(logical=False) or 1,
        force=wish.force,
    )


def _free_name(folder: Path, entry: ModelEntry, wish: Wish) -> Path:
    """A name that says what it is, not in use."""
    if wish.mix is not None:
        words = wish.mix.upper()
    elif wish.fit:
        words = f"fit-{wish.n_ctx}" + (f"-{wish.kv_type}" if wish.kv_type else "")
    elif wish.bpw is not None:
        words = f"{wish.bpw:g}bpw"
    else:
        size = wish.budget_bytes or 0
        words = f"{size / 1e9:.3g}GB" if size >= 1e9 else f"{size / 1e6:.3g}MB"  # noqa: PLR2004 - a gigabyte
    stem = f"{entry.id.replace('/', '-')}-{words}"
    number = 1
    while (path := folder / f"{stem}{f'-{number}' if number > 1 else ''}.gguf").exists():
        number += 1
    return path


def _engine_error(error: quantize.errors.QuantizeError) -> Exception:
    """The quantizer's error as the server answers it."""
    if isinstance(error, quantize.errors.InputFault):
        fault = InputFault(str(error))
        fault.code = error.code
        return fault
    return EnvironmentFault(str(error))

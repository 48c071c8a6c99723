"""Reads, checks and writes portable plans."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from devices.msgspec_lock import learned
from quantize.errors import CannotRead, InvalidOption
from quantize.files.measurement_folder import file_sha256
from quantize.files.output_file import write_atomic
from quantize.files.provenance import Provenance
from quantize.job.portable_plan import FORMAT, RECIPE, VERSION, PlanFile
from quantize.reproducible_math import arithmetic_here
from quantize.types import Interval, ModelSpec, QuantPlan, Rounding

if TYPE_CHECKING:
    from quantize.job.request import QuantizeReport, QuantizeRequest

MAX_BYTES = 4 << 20  # a plan of 100,000 tensors
# A local measurement may exceed the plan's interval by this factor, because text and arithmetic can differ.
_SLACK = 1.25


def read_plan(path: Path) -> PlanFile:
    """Read a plan. Raises: CannotRead. InvalidOption: not a plan, or a plan of another version."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidOption("--plan", f"{path} is larger than any plan")
        raw = path.read_bytes()
    except OSError as error:
        raise CannotRead(str(path), error.strerror or str(error)) from error
    try:
        head = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidOption("--plan", f"{path} is not a plan: {error}") from error
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise InvalidOption("--plan", f"{path} is not a plan: it does not say format {FORMAT!r}")
    for what, mine in (("version", VERSION), ("recipe", RECIPE)):
        if head.get(what) != mine:
            raise InvalidOption(
                "--plan",
                f"{path} has {what} {head.get(what)!r}, this program makes {what} {mine}: its file would come out "
                "differently. Use the program that made it, or ask for a new plan",
            )
    try:
        return msgspec.json.decode(raw, type=learned(PlanFile))
    except (ValueError, RecursionError) as error:
        raise InvalidOption("--plan", f"{path} is damaged: {error}") from error


def write_plan(path: Path, plan: PlanFile) -> None:
    """Write a plan completely or not at all. Raises: OSError."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n", "plan")


def arithmetic_for(request: "QuantizeRequest") -> str:
    """The arithmetic of a job: reproducible if it follows or exports a plan.

    Raises: InvalidOption: the plan's arithmetic is not available here, and `force` is not set.
    """
    plan = request.plan
    if plan is None:
        measures = request.tier != "instant"
        return arithmetic_here() if request.export_plan and measures else ""
    if plan.arithmetic in {"", arithmetic_here()}:
        return plan.arithmetic
    if not request.force:
        raise InvalidOption(
            "--plan",
            f"its file was computed with the arithmetic of {plan.arithmetic}, which this CPU or this build "
            "of llama.cpp has not: other bytes would come out. --force makes that other file, measured here",
        )
    return ""


def check_source(plan: PlanFile, spec: ModelSpec, source_sha256: str) -> None:
    """Check the plan's source. Raises: InvalidOption: the plan belongs to another source."""
    if plan.architecture != spec.architecture:
        raise InvalidOption("--plan", f"it is of a model of {plan.architecture}; this one is {spec.architecture}")
    if plan.source_sha256 != source_sha256:
        raise InvalidOption(
            "--plan",
            f"it was made from another file: its source has SHA-256 {plan.source_sha256[:16]}…, this one "
            f"{source_sha256[:16]}…",
        )


def check_texts(plan: PlanFile, calibration: Path, imatrix: Path | None) -> None:
    """Check the plan's inputs. Raises: InvalidOption: the text or importance matrix differs from the plan's.

    Unreadable.
    """
    if plan.rounding != Rounding.STOCK and plan.calibration_sha256 != file_sha256(calibration):
        raise InvalidOption(
            "--plan",
            f"it was calibrated on another text than {calibration.name}: give the text with SHA-256 "
            f"{plan.calibration_sha256[:16]}… as --calibration",
        )
    digest = file_sha256(imatrix) if imatrix else ""
    if plan.imatrix_sha256 != digest:
        raise InvalidOption(
            "--plan",
            f"it was made with the importance matrix {plan.imatrix_sha256[:16] or 'measured here'}, not with "
            f"{digest[:16] or 'one measured here'}",
        )


def check_claim(plan: PlanFile, measured: Interval) -> None:
    """Check the plan's KL divergence. Raises: InvalidOption: the local measurement is significantly worse."""
    if measured.low > _SLACK * plan.kld.high:
        raise InvalidOption(
            "--plan",
            f"its claim does not hold here: KL divergence {measured.value:.5f} ({measured.low:.5f} to "
            f"{measured.high:.5f}), claimed {plan.kld.value:.5f} ({plan.kld.low:.5f} to {plan.kld.high:.5f})",
        )


def applied(plan: PlanFile, computed: QuantPlan) -> QuantPlan:
    """The plan made from the given types, with the values stored in the plan file."""
    return msgspec.structs.replace(computed, goal=plan.goal, damage=plan.damage, best_stock=plan.best_stock)


NO_PLAN = "no plan was exported: the file is a llama.cpp preset, or was not compared"


def same_or_not(plan: PlanFile, digest: str, *, force: bool) -> str:
    """Message about a file made from a plan. Raises: InvalidOption: the file's bytes differ, without `force`."""
    if digest == plan.file_sha256:
        return f"byte for byte the file the plan describes (SHA-256 {digest[:16]}…)"
    result = (
        "not byte for byte the file the plan describes: the arithmetic of this CPU or of this build of "
        "llama.cpp differs in its last bits"
    )
    if not force:
        raise InvalidOption("--plan", f"the result is {result}. --force keeps such a file, which is measured here")
    return f"{result}. It was measured here and holds what the plan claims"


def plan_of(
    request: "QuantizeRequest",
    report: "QuantizeReport",
    rounded: Collection[str],
    provenance: Provenance,
    digest: str,
) -> PlanFile | None:
    """The portable plan of a finished file; None for a preset, or a file that was not compared."""
    if report.ours is None or report.shipped != "ours":
        return None
    plan = report.plan
    return PlanFile(
        architecture=plan.architecture,
        source_sha256=report.source_sha256,
        goal=plan.goal,
        tier=request.tier,
        rounding=report.rounding,
        max_tokens=request.max_tokens,
        calibration_sha256=file_sha256(request.calibration),
        imatrix_sha256=file_sha256(request.imatrix) if request.imatrix else "",
        arithmetic=arithmetic_for(request),
        types=plan.types,
        plain=tuple(t.name for t in plan.tensors if t.qtype != t.source_qtype and t.name not in rounded),
        best_stock=plan.best_stock,
        damage=plan.damage,
        kld=report.ours.kld_mean,
        ratio=report.ours.ratio,
        stock_mix=report.stock_mix or "",
        file_bytes=report.file_bytes or 0,
        file_sha256=digest,
        provenance=provenance,
    )

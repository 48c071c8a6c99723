"""Runs a quality gate: the reference once, then the candidates in order until one passes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from quantize.files.measurement_folder import file_sha256
from quantize.ggml_types import NEARLY_EXACT
from quantize.job.forecast import effort_of
from quantize.job.gate import GateCheck, GateReport, GateTask, Mix, compared
from quantize.job.request import QuantizeRequest, Shipped
from quantize.job.source import file_type
from quantize.job.write_model import WriteRequest
from quantize.measurements import CancelCheck, OnProgress, Progress, VerifyRequest
from quantize.plan.plan import PlanInput, stock_plans
from quantize.types import FileReport, PresetPlan, QuantPlan, Rounding

NOT_THE_SOURCE: Final = (
    "compared with the source in 8 bits: in 16 bits it does not fit into the memory that is free"
)


class Answered(msgspec.Struct, frozen=True):
    """The results of one file's cases, in order.

    `asked` is the number of cases that ran now (the others were cached).
    """

    passed: tuple[bool, ...]
    asked: int = 0


class GateEvaluator(Protocol):
    """Runs the cases of one task on a file at temperature 0, and caches the results by the file's hash."""

    def fits(self, model: Path) -> bool:
        """Whether the file fits in the free memory."""
        ...

    def ask(self, model: Path, sha256: str, on_progress: OnProgress, cancelled: CancelCheck) -> Answered:
        """Run the cases on a file. Raises: Cancelled; errors of loading the file."""
        ...


def ask_gate(
    judge: GateEvaluator,
    task: GateTask,
    reference: tuple[Path, str, str],
    candidates: Mapping[Mix, Path],
    on_progress: OnProgress,
    cancelled: CancelCheck,
) -> tuple[GateReport, bool]:
    """Run the gate.

    Returns its report, and whether every case of two files ran now (only then is the duration usable).

    `reference` is a file, its hash and its description. Raises: same as `judge`.
    """
    num_asked = 0

    def ask(model: Path, sha256: str, turn: int) -> tuple[bool, ...]:
        nonlocal num_asked
        # A third file exceeds the forecast: the progress bar stays at its end.
        shift, total = float(turn * task.cases), 2.0 * task.cases

        def forward(at: Progress) -> None:
            on_progress(msgspec.structs.replace(at, done=min(total, shift + at.done), total=total))

        answers = judge.ask(model, sha256, forward, cancelled)
        num_asked += answers.asked
        return answers.passed

    path, sha256, note = reference
    before = ask(path, sha256, 0)
    checks: list[GateCheck] = []
    for mix, file in candidates.items():
        checks.append(compared(mix, before, ask(file, file_sha256(file), len(checks) + 1)))
        if not checks[-1].vetoed:
            break
    whole = num_asked == 2 * len(before) and len(checks) == 1
    return GateReport(task=task.name, reference=note, checks=tuple(checks)), whole


def nearly_exact(question: PlanInput, ours: WriteRequest, out: Path) -> tuple[WriteRequest, int]:
    """A request to write the source in 8 bits, and the file's bytes.

    The file is the reference if 16 bits do not fit in memory.
    """
    nearly = next(s for s in stock_plans(question) if s.name == NEARLY_EXACT.name)
    number = file_type(NEARLY_EXACT.name)
    task = msgspec.structs.replace(
        ours, out=out, types=nearly.types, file_type=number, packed={}, imatrix=None, provenance=False
    )
    return task, nearly.file_bytes


# The choice between Tessera's recipe and the preset: the comparison, its result, and the message without a rival.

_MAX_INSTANT_TOKENS = 8192  # comparison length if nothing was measured


def verify_request(
    request: QuantizeRequest, source: Path, ours: Path, stock: Path | None, text: Path
) -> VerifyRequest:
    """The comparison request; the comparison stops as soon as it is clear which file is better."""
    most = request.verify_tokens
    return VerifyRequest(
        reference=source,
        files=(ours, stock) if stock else (ours,),
        text=text,
        max_tokens=min(most, _MAX_INSTANT_TOKENS) if request.tier == "instant" else most,
        min_tokens=effort_of(request.tier).verify_tokens,
        threads=request.threads,
        gpu_layers=request.gpu_layers,
    )


def stock_rival(question: PlanInput, plan: QuantPlan, rounding: Rounding) -> PresetPlan | None:
    """The preset to compare with; None if no preset fits or the plan equals it."""
    if plan.goal.kind == "mix" or plan.best_stock is None:
        return None
    preset = next(s for s in stock_plans(question) if s.name == plan.best_stock)
    same = preset.types == plan.types and rounding == Rounding.STOCK and not plan.exact
    return None if same else preset


def verdict(reports: tuple[FileReport, ...]) -> tuple[Shipped, tuple[str, ...]]:
    """Which file ships, and warnings. Tessera's file ships if it is significantly better, or has no rival."""
    ratio = reports[0].ratio
    if ratio is None or ratio.high < 1:
        return "ours", ()
    warning = (
        f"the quantization for this model has {ratio.value:.2f} times the llama.cpp preset's KL divergence "
        f"({ratio.low:.2f} to {ratio.high:.2f}): not clearly better, so the preset is written"
    )
    return "stock", (warning,)


def no_rival(question: PlanInput, plan: QuantPlan) -> str:
    """Message: no preset is small enough for a comparison."""
    usable = [s for s in stock_plans(question) if question.evidence.has_imatrix or not s.needs_imatrix]
    smallest = min(usable, key=lambda s: s.file_bytes)
    return (
        f"no llama.cpp preset is as small as {plan.file_bytes:,} bytes (the smallest, {smallest.name}, takes "
        f"{smallest.file_bytes:,}): compared with the source only"
    )

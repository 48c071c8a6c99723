"""Asking a gate's cases: the reference once, then one file after the other until one may be kept."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from quantize.files.measurement_folder import file_sha256
from quantize.ggml_types import NEARLY_EXACT
from quantize.job.effort import effort_of
from quantize.job.gate import GateCheck, GateReport, GateTask, Mix, compared
from quantize.job.request import QuantizeRequest, Shipped
from quantize.job.source import file_type
from quantize.job.write_model import WriteRequest
from quantize.measurements import CancelCheck, OnProgress, Progress, VerifyRequest
from quantize.plan.plan import Question, stock_plans
from quantize.types import FileReport, QuantPlan, Rounding, StockPlan

NOT_THE_SOURCE: Final = (
    "compared with the source in 8 bits: in 16 bits it does not fit into the memory that is free"
)


class Answered(msgspec.Struct, frozen=True):
    """Which cases one file passed, in their order, and how many of them were asked now (the rest: known before)."""

    passed: tuple[bool, ...]
    asked: int = 0


class Judge(Protocol):
    """Asks a file the cases of one task, at temperature 0, and keeps its answers by the file's hash."""

    def fits(self, model: Path) -> bool:
        """Whether the file can be loaded in the memory that is free."""
        ...

    def ask(self, model: Path, sha256: str, on_progress: OnProgress, cancelled: CancelCheck) -> Answered:
        """Raises: Cancelled; whatever loading the file raises."""
        ...


def ask_gate(
    judge: Judge,
    task: GateTask,
    reference: tuple[Path, str, str],
    candidates: Mapping[Mix, Path],
    on_progress: OnProgress,
    cancelled: CancelCheck,
) -> tuple[GateReport, bool]:
    """What came out, and whether every case was asked now, of two files: only then the time it took says anything.

    `reference` is a file, its hash and what to say of it. Raises: as the judge.
    """
    asked = 0

    def ask(model: Path, sha256: str, turn: int) -> tuple[bool, ...]:
        nonlocal asked
        # A third file takes longer than was told: the bar waits at its end.
        shift, total = float(turn * task.cases), 2.0 * task.cases

        def forward(at: Progress) -> None:
            on_progress(msgspec.structs.replace(at, done=min(total, shift + at.done), total=total))

        found = judge.ask(model, sha256, forward, cancelled)
        asked += found.asked
        return found.passed

    path, sha256, note = reference
    before = ask(path, sha256, 0)
    checks: list[GateCheck] = []
    for mix, file in candidates.items():
        checks.append(compared(mix, before, ask(file, file_sha256(file), len(checks) + 1)))
        if not checks[-1].vetoed:
            break
    whole = asked == 2 * len(before) and len(checks) == 1
    return GateReport(task=task.name, reference=note, checks=tuple(checks)), whole


def nearly_exact(question: Question, ours: WriteRequest, out: Path) -> tuple[WriteRequest, int]:
    """How to write the source in 8 bits, and the bytes that takes: a reference where 16 bits are too many."""
    nearly = next(s for s in stock_plans(question) if s.name == NEARLY_EXACT.name)
    number = file_type(NEARLY_EXACT.name)
    task = msgspec.structs.replace(
        ours, out=out, types=nearly.types, file_type=number, packed={}, imatrix=None, provenance=False
    )
    return task, nearly.file_bytes


# Whose mix ships: what is compared, what that says, and what is told where there is nothing to compare.

_MAX_INSTANT_TOKENS = 8192  # to compare on where nothing was measured


def verify_request(
    request: QuantizeRequest, source: Path, ours: Path, stock: Path | None, text: Path
) -> VerifyRequest:
    """What is compared, and on how much text: it ends as soon as it is clear which file is better."""
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


def stock_rival(question: Question, plan: QuantPlan, rounding: Rounding) -> StockPlan | None:
    """The stock mix to be beaten, if there is one that fits and the plan is not that very mix."""
    if plan.goal.kind == "mix" or plan.best_stock is None:
        return None
    found = next(s for s in stock_plans(question) if s.name == plan.best_stock)
    return None if found.types == plan.types and rounding == Rounding.STOCK else found


def verdict(reports: tuple[FileReport, ...]) -> tuple[Shipped, tuple[str, ...]]:
    """Ours ships only if it is better by more than chance, or alone; and what to say of it."""
    ratio = reports[0].ratio
    if ratio is None or ratio.high < 1:
        return "ours", ()
    warning = (
        f"the mix made for this model has {ratio.value:.2f} times the stock mix's KL divergence "
        f"({ratio.low:.2f} to {ratio.high:.2f}): not clearly better, so the stock mix ships"
    )
    return "stock", (warning,)


def no_rival(question: Question, plan: QuantPlan) -> str:
    """Why there is nothing to be better than."""
    usable = [s for s in stock_plans(question) if question.evidence.has_imatrix or not s.needs_imatrix]
    smallest = min(usable, key=lambda s: s.file_bytes)
    return (
        f"no stock mix of llama.cpp is as small as {plan.file_bytes:,} bytes (the smallest, {smallest.name}, takes "
        f"{smallest.file_bytes:,}): compared with the source only"
    )

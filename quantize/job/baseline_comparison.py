"""Whose mix ships: what is compared, what that says, and what is told where there is nothing to compare."""

from pathlib import Path

from quantize.job.effort import effort_of
from quantize.job.request import QuantizeRequest, Shipped
from quantize.measurements import VerifyRequest
from quantize.plan.plan import Question, stock_plans
from quantize.types import FileReport, QuantPlan, Rounding, StockPlan

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

"""A task as a gate: the same cases for a file and for what it was made of, and whether the file may be kept."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from quantize.intervals import mcnemar, paired
from quantize.types import Interval

Mix = Literal["ours", "stock"]


class GateTask(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, for a forecast: tokens of all cases together."""

    name: str
    cases: int
    prompt_tokens: int
    answer_tokens: int


class GateCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One file beside the reference on the same cases.

    `lost` only the reference passed, `won` only the file. `loss` is their difference as a share of all cases, with
    its 95 % interval; `p_value` is McNemar's. `vetoed`: the whole interval is a loss.
    """

    mix: Mix
    cases: int
    before: int
    after: int
    lost: int
    won: int
    loss: Interval
    p_value: float
    vetoed: bool


class GateReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate measured, file by file. `reference`: what they were compared with, where not with the source."""

    task: str
    reference: str
    checks: tuple[GateCheck, ...]

    @property
    def passed(self) -> Mix | None:
        """Whose mix may be kept; None: neither."""
        last = self.checks[-1]
        return None if last.vetoed else last.mix


def compared(mix: Mix, before: Sequence[bool], after: Sequence[bool]) -> GateCheck:
    """The loss from one to the other, case by case: only cases where they differ say anything."""
    change, low, high = paired(before, after)
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    won = sum(b and not a for a, b in zip(before, after, strict=True))
    return GateCheck(
        mix=mix,
        cases=len(before),
        before=sum(before),
        after=sum(after),
        lost=lost,
        won=won,
        loss=Interval(-change, -high, -low),
        p_value=mcnemar(lost, won),
        vetoed=-high > 0,
    )


def counts(check: GateCheck) -> str:
    """`38 of 50 before, 31 after`."""
    return f"{check.before} of {check.cases} before, {check.after} after"


def likely(check: GateCheck) -> str:
    """The interval in words, in points of a hundred."""
    low, high = 100 * check.loss.low, 100 * check.loss.high
    if low > 0:
        return f"likely loss {low:.0f} to {high:.0f} points"
    if high < 0:
        return f"likely gain {-high:.0f} to {-low:.0f} points"
    return f"likely between {-low:.0f} points better and {high:.0f} worse: no clear loss"


def lines(gate: GateReport) -> list[str]:
    """What a person wants to know of a gate, a line for each file that was asked."""
    texts = []
    for check in gate.checks:
        whose = "" if check.mix == "ours" else "stock mix, "
        end = "vetoed" if check.vetoed else "kept"
        texts.append(f"task {gate.task}: {whose}{counts(check)}; {likely(check)} (p = {check.p_value:.3f}): {end}")
    if gate.reference:
        texts.append(gate.reference)
    return texts


def could_veto(gate: GateReport) -> bool:
    """Whether losing all that the original passes would have been a veto."""
    check = gate.checks[-1]
    best = [True] * check.before + [False] * (check.cases - check.before)
    return compared(check.mix, best, [False] * check.cases).vetoed


def cautions(gate: GateReport) -> tuple[str, ...]:
    """What must not be overlooked: nothing was kept, and what to do; or this task could not veto at all."""
    check, task = gate.checks[-1], gate.task
    if gate.passed is None:
        which = "the file does" if len(gate.checks) == 1 else "this mix and the stock mix of the same size do"
        why = f"nothing was kept: {which} {task} clearly worse than the original"
        return (f"{why}. Allow more bytes, or take a more thorough tier; the source is untouched",)
    if could_veto(gate):
        return ()
    few = f"the original passes {check.before} of {check.cases} cases of {task}"
    return (f"{few}: losing them all could be chance, so this task could not veto",)


def receipt(gate: GateReport, mix: Mix) -> str:
    """What the file itself says of its gate: `certify 31>30/34`."""
    check = next(c for c in gate.checks if c.mix == mix)
    return f"{gate.task[:20]} {check.before}>{check.after}/{check.cases}"

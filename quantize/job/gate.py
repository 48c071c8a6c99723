"""A task as a quality gate: the same cases for a file and its source, and whether the file passes."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from quantize.intervals import mcnemar, paired
from quantize.types import Interval

Mix = Literal["ours", "stock"]


class GateTask(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a gate's task, for a forecast: total tokens of all cases."""

    name: str
    cases: int
    prompt_tokens: int
    answer_tokens: int


class GateCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One file compared with the reference on the same cases.

    `lost` counts cases that only the reference passed, `won` those that only the file passed. `loss` is their
    difference as a fraction of all cases, with its 95 % interval; `p_value` is McNemar's. `vetoed` is True if the
    whole interval is a loss.
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
    """The results of a gate by file. `reference` describes the reference if it is not the source."""

    task: str
    reference: str
    checks: tuple[GateCheck, ...]

    @property
    def passed(self) -> Mix | None:
        """The recipe that may be used; None if both were rejected."""
        last = self.checks[-1]
        return None if last.vetoed else last.mix


def compared(mix: Mix, before: Sequence[bool], after: Sequence[bool]) -> GateCheck:
    """The paired loss from `before` to `after`: only cases with different results count."""
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
    """Format the counts, for example `38 of 50 before, 31 after`."""
    return f"{check.before} of {check.cases} before, {check.after} after"


def likely(check: GateCheck) -> str:
    """Format the interval in percentage points."""
    low, high = 100 * check.loss.low, 100 * check.loss.high
    if low > 0:
        return f"likely loss {low:.0f} to {high:.0f} points"
    if high < 0:
        return f"likely gain {-high:.0f} to {-low:.0f} points"
    return f"likely between {-low:.0f} points better and {high:.0f} worse: no clear loss"


def lines(gate: GateReport) -> list[str]:
    """Lines for the user about a gate, one per tested file."""
    texts = []
    for check in gate.checks:
        whose = "" if check.mix == "ours" else "llama.cpp preset, "
        end = "vetoed" if check.vetoed else "kept"
        texts.append(f"task {gate.task}: {whose}{counts(check)}; {likely(check)} (p = {check.p_value:.3f}): {end}")
    if gate.reference:
        texts.append(gate.reference)
    return texts


def could_veto(gate: GateReport) -> bool:
    """Return True if the gate would reject a file that fails every case the original passes."""
    check = gate.checks[-1]
    best = [True] * check.before + [False] * (check.cases - check.before)
    return compared(check.mix, best, [False] * check.cases).vetoed


def cautions(gate: GateReport) -> tuple[str, ...]:
    """Important warnings: no file was written and what to do, or the task could not have rejected any file."""
    check, task = gate.checks[-1], gate.task
    if gate.passed is None:
        which = (
            "the file does" if len(gate.checks) == 1 else "this file and the llama.cpp preset of the same size do"
        )
        why = f"discarded: {which} {task} clearly worse than the original"
        return (f"{why}. Allow more bytes, or use a more thorough tier; the source is unchanged",)
    if could_veto(gate):
        return ()
    few = f"the original passes {check.before} of {check.cases} cases of {task}"
    return (f"{few}: losing them all could be chance, so this task could not veto",)


def receipt(gate: GateReport, mix: Mix) -> str:
    """The gate's result for the file's metadata, for example `certify 31>30/34`."""
    check = next(c for c in gate.checks if c.mix == mix)
    return f"{gate.task[:20]} {check.before}>{check.after}/{check.cases}"

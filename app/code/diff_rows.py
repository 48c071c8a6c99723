"""Diffs of a proposal for display."""

import difflib
from collections.abc import Collection
from dataclasses import dataclass

from app.code.edits import parse as text_lines
from app.code.edits.apply import merge
from app.code.edits.session import FileProposal
from app.code.edits.types import Hunk


def file_change(hunk: Hunk) -> str:
    """A hunk's change to the file itself, shown after its path; empty if only text changes."""
    if hunk.to is not None:
        return f" → {hunk.to}"
    if hunk.executable is not None:
        return " (executable)" if hunk.executable else " (not executable)"
    return ""


def file_diff(file: FileProposal, chosen: Collection[int] | None = None) -> str:
    """Unified diff of the file with the chosen hunks applied (None: all located hunks)."""
    before, after = text_with(file, file.hunk_ids if chosen is None else chosen)
    old, new = text_lines.contents(before), text_lines.contents(after)
    name = file.path if file.before else "/dev/null"
    return "\n".join(difflib.unified_diff(old, new, name, file.path, lineterm=""))


@dataclass(frozen=True)
class Side:
    """One line of one side; `number` is 1-based."""

    number: int
    text: str


@dataclass(frozen=True)
class Row:
    """An old line next to the new line that replaces it; None if a side has no line."""

    left: Side | None
    right: Side | None
    changed: bool


def aligned_rows(before: str, after: str, context: int = 3) -> list[Row | None]:
    """Both texts side by side, changes with `context` lines around them; None marks omitted lines."""
    old, new = text_lines.contents(before), text_lines.contents(after)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    rows: list[Row | None] = []
    end = 0
    for group in matcher.get_grouped_opcodes(context):
        if group[0][1] > end or rows:
            rows.append(None)
        for tag, old_from, old_to, new_from, new_to in group:
            for step in range(max(old_to - old_from, new_to - new_from)):
                old_at = old_from + step if step < old_to - old_from else None
                right = new_from + step if step < new_to - new_from else None
                rows.append(
                    Row(
                        None if old_at is None else Side(old_at + 1, old[old_at]),
                        None if right is None else Side(right + 1, new[right]),
                        tag != "equal",
                    )
                )
        end = group[-1][2]
    if rows and end < len(old):
        rows.append(None)
    return rows


def text_with(file: FileProposal, chosen: Collection[int]) -> tuple[str, str]:
    """Return (before, after): the file without and with the chosen hunks.

    If they need an earlier hunk, `before` is the file with all earlier hunks applied.
    """
    before = file.before.text if file.before else ""
    pairs = list(zip(file.hunk_ids, file.result.outcomes, strict=True))
    outcomes = [outcome for hunk_id, outcome in pairs if hunk_id in chosen]
    if any(outcome.hunk.kind == "delete" for outcome in outcomes):
        return before, ""
    alone = merge(before, outcomes)
    if alone is not None:
        return before, alone
    last = max(index for index, (hunk_id, _) in enumerate(pairs) if hunk_id in chosen)
    earlier = [outcome for hunk_id, outcome in pairs[:last] if hunk_id not in chosen]
    base = merge(before, earlier)
    whole = merge(before, [outcome for _, outcome in pairs[: last + 1]])
    return (before, before) if base is None or whole is None else (base, whole)

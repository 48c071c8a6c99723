"""A proposal as a person reads it: a diff of the chosen hunks of a file."""

import difflib
from collections.abc import Collection

from app.code.edits import lines as text_lines
from app.code.edits.apply import merge
from app.code.edits.session import FileProposal


def file_diff(file: FileProposal, chosen: Collection[int] | None = None, context: int = 3) -> str:
    """A unified diff of the file with the chosen hunks applied (None: all that have a place)."""
    before = file.before.text if file.before else ""
    outcomes = [
        outcome
        for hunk_id, outcome in zip(file.hunk_ids, file.result.outcomes, strict=True)
        if chosen is None or hunk_id in chosen
    ]
    old, new = text_lines.contents(before), text_lines.contents(merge(before, outcomes))
    name = file.path if file.before else "/dev/null"
    return "\n".join(difflib.unified_diff(old, new, name, file.path, n=context, lineterm=""))

"""Edits in forms that are not read: recognized, so that they are reported and never ignored in silence."""

import re
from collections.abc import Sequence
from typing import Final

from app.code.edits.types import Malformed

_CODEX_BEGIN: Final = re.compile(r"^\s*\*\*\* Begin Patch\s*$")
_CODEX_END: Final = re.compile(r"^\s*\*\*\* End Patch\s*$")
_CODEX_FILE: Final = re.compile(r"^\s*\*\*\* (?:Update|Add|Delete) File: (.+?)\s*$")
# Marks of a block that are not at the beginning of their line, are in small letters or name something else.
_NEARLY_BLOCK: Final = re.compile(
    r"^[\s>]*(?:<{5,9}\s*(?:SEARCH|ORIGINAL)|-{5,9}\s*SEARCH)\b|^<{7}(?:\s|$)", re.IGNORECASE
)
_NEARLY_END: Final = re.compile(r"^[\s>]*(?:>{5,9}|\+{5,9})\s*(?:REPLACE|UPDATED)\b|^>{7}(?:\s|$)", re.IGNORECASE)
_TOOL: Final = re.compile(
    r"^\s*<(write_to_file|replace_in_file|apply_diff|insert_content|search_and_replace|write_file|edit_file"
    r"|create_file|new_file|str_replace|str_replace_editor|apply_patch|multi_edit|edit|rewrite)\b[^<]*>"
)
_TOOL_FILE: Final = re.compile(r"<(path|file|file_?path|file_?name)>\s*(.*?)\s*</\1>|\b(?:path|file)=\"([^\"]+)\"")
# The file stands on one of the first lines of a call.
_CALL_HEAD: Final = 5
_CONTEXT_DIFF: Final = re.compile(r"^\*{15}")
_NORMAL_DIFF: Final = re.compile(r"^\d+(?:,\d+)?[acd]\d+(?:,\d+)?$")
# The end of an edit is looked for this far, so that many without one do not take the square of their number.
_MAX_LINES: Final = 200
_LONE_HUNK: Final = re.compile(r"^@@ (?:-\d|\.\.\.)")


def is_tool_call(line: str) -> bool:
    """Whether an edit as an XML call of a tool begins here; blocks inside it are read."""
    return _TOOL.match(line) is not None


def read_tool_call(lines: Sequence[str], position: int) -> Malformed:
    """What to report of a tool's call of which no part was read."""
    match = _TOOL.match(lines[position])
    assert match is not None
    named = _TOOL_FILE.search("\n".join(lines[position : position + _CALL_HEAD]))
    path = (named.group(2) or named.group(3)) if named else None
    reason = f"an edit as a <{match.group(1)}> call is not read; send SEARCH/REPLACE blocks"
    return Malformed(line=position + 1, reason=reason, path=path)


def read_foreign(lines: Sequence[str], position: int) -> tuple[list[Malformed], int] | None:
    """What to report of an edit in another form that begins here, and the line after it; None: none begins."""
    line = lines[position]
    if _CODEX_BEGIN.match(line) or _CODEX_FILE.match(line):
        return _codex(lines, position)
    if _NEARLY_BLOCK.match(line):
        far = min(position + _MAX_LINES, len(lines))
        ends = (i for i in range(position + 1, far) if _NEARLY_END.match(lines[i]))
        reason = f"a block begins with {line.strip()[:40]!r}, not with '<<<<<<< SEARCH' at the start of a line"
        return [Malformed(line=position + 1, reason=reason)], next(ends, position) + 1
    follows = lines[position + 1] if position + 1 < len(lines) else ""
    if _CONTEXT_DIFF.match(line) and follows.startswith("*** "):
        reason = "a context diff is not read; send SEARCH/REPLACE blocks or a unified diff"
    elif _NORMAL_DIFF.match(line) and follows.startswith(("< ", "> ")):
        reason = "a diff without file names is not read; send SEARCH/REPLACE blocks or a unified diff"
    elif _LONE_HUNK.match(line):
        reason = "the hunk has no '--- ' and '+++ ' lines that name a file"
    else:
        return None
    end = position + 1
    while end < len(lines) and lines[end].startswith(("+", "-", " ", "!", "<", ">", "*", "@@", "\\")):
        end += 1
    return [Malformed(line=position + 1, reason=reason)], end


def _codex(lines: Sequence[str], position: int) -> tuple[list[Malformed], int]:
    reason = "a patch in the form of Codex ('*** Begin Patch') is not read; send SEARCH/REPLACE blocks"
    end = position + 1
    while end < len(lines) and not _CODEX_END.match(lines[end]):
        if _CODEX_BEGIN.match(lines[end]) or lines[end].startswith(("<<<<<<< SEARCH", "```", "~~~", "diff --git ")):
            break
        end += 1
    else:
        end = min(end + 1, len(lines))
    files = [(i, m) for i in range(position, end) if (m := _CODEX_FILE.match(lines[i]))]
    found = [Malformed(line=i + 1, reason=reason, path=m.group(1)) for i, m in files]
    return found or [Malformed(line=position + 1, reason=reason)], end

"""Edits in other tools' formats: Codex patches are read, the others are reported instead of ignored."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.code.edits.types import Hunk, Malformed

# Marks of a block that are indented, in lower case or have another name.
_NEARLY_BLOCK: Final = re.compile(
    r"^[\s>]*(?:<{5,9}\s*(?:SEARCH|ORIGINAL)|-{5,9}\s*SEARCH)\b|^<{7}(?:\s|$)", re.IGNORECASE
)
_NEARLY_END: Final = re.compile(r"^[\s>]*(?:>{5,9}|\+{5,9})\s*(?:REPLACE|UPDATED)\b|^>{7}(?:\s|$)", re.IGNORECASE)
_TOOL: Final = re.compile(
    r"^\s*<(write_to_file|replace_in_file|apply_diff|insert_content|search_and_replace|write_file|edit_file"
    r"|create_file|new_file|str_replace|str_replace_editor|apply_patch|multi_edit|edit|rewrite)\b[^<]*>"
)
_TOOL_FILE: Final = re.compile(
    r"<(path|file|file_?path|file_?name)>\s*+([^<\n]*+)\s*+</\1>|\b(?:path|file)=\"([^\"]+)\""
)
# The file name is on one of the first lines of a call.
_CALL_HEAD: Final = 5
_NEARLY_DIVIDER: Final = re.compile(r"^={5,9}$")
_CONTEXT_DIFF: Final = re.compile(r"^\*{15}")
_NORMAL_DIFF: Final = re.compile(r"^\d+(?:,\d+)?[acd]\d+(?:,\d+)?$")
# Limit of the search for an edit's end; without it, many edits without an end would take quadratic time.
_MAX_LINES: Final = 200
_LONE_HUNK: Final = re.compile(r"^@@ (?:-\d|\.\.\.)")


def is_tool_call(line: str) -> bool:
    """Return True if an XML tool call for an edit starts here; blocks inside it are parsed."""
    return _TOOL.match(line) is not None


def read_tool_call(lines: Sequence[str], position: int) -> Malformed:
    """Report for a tool call from which nothing was parsed."""
    match = _TOOL.match(lines[position])
    assert match is not None
    match_file = _TOOL_FILE.search("\n".join(lines[position : position + _CALL_HEAD]))
    path = (match_file.group(2) or match_file.group(3)).strip() if match_file else None
    reason = f"an edit as a <{match.group(1)}> call is not read; send SEARCH/REPLACE blocks"
    return Malformed(line=position + 1, reason=reason, path=path)


# A shell command that writes a file, or JSON arguments of an edit tool, in a fence of these languages.
_SHELL_EDIT: Final = re.compile(
    r"^\s*(?:(?:cat|tee)\b[^|;]*<<|(?:sudo\s+)?sed\s+(?:-\w+\s+)*-i|(?:git\s+apply|patch\s+-p\d)\b.*<<)"
)
_JSON_EDIT: Final = re.compile(r"[\"'](?:old_str|old_string|new_str|new_string|file_text|insert_line)[\"']\s*:")


_SHELL_REASON: Final = "a shell command that edits files is not run; send SEARCH/REPLACE blocks"
_CALL_REASON: Final = "the arguments of an edit tool are not read here; send SEARCH/REPLACE blocks"


def reason_to_report(code: Sequence[str], language: str) -> str | None:
    """The reason why code in a fence is reported: it edits files in another form; None if it does not."""
    if language == "ed" or any(_SHELL_EDIT.match(line) for line in code):
        return _SHELL_REASON
    if any(_JSON_EDIT.search(line) for line in code):
        return _CALL_REASON
    return None


_ESCAPED_PATCH: Final = re.compile(r"\*\*\* Begin Patch\\+n")
_JSON_LINE: Final = re.compile(r"^\s*[{\[\"]")


def read_unfenced(lines: Sequence[str], position: int) -> tuple[list[Malformed], int] | None:
    """The report for a shell command or a call in JSON outside of fences, and the line after it."""
    line = lines[position]
    if _ESCAPED_PATCH.search(line) or (_JSON_LINE.match(line) and _JSON_EDIT.search(line)):
        reason = _CALL_REASON
    elif _SHELL_EDIT.match(line):
        reason = _SHELL_REASON
    else:
        return None
    end = position + 1
    while end < len(lines) and _JSON_LINE.match(lines[end]):
        end += 1
    return [Malformed(line=position + 1, reason=reason)], end


# An edit that Markdown has indented or quoted, so that its own marks are not at the start of a line.
_SHIFT: Final = re.compile(r"^(?:\s*>\s*|\s{2,})(--- (?:a/|/dev/null)|diff --git |\*\*\* Begin Patch\s*$)")


def _is_shifted(lines: Sequence[str], position: int) -> bool:
    shift = _SHIFT.match(lines[position])
    if shift is None or begins_patch(lines, position):
        return False
    follows = lines[position + 1] if position + 1 < len(lines) else ""
    return not shift.group(1).startswith("---") or follows.strip("> \t").startswith("+++ ")


def read_foreign(lines: Sequence[str], position: int) -> tuple[list[Malformed], int] | None:
    """Reports for an edit in an unsupported format that starts here, and the line after it; None if none starts."""
    line = lines[position]
    if _is_shifted(lines, position):
        end = position + 1
        while end < len(lines) and lines[end].startswith((" ", ">", "\t")):
            end += 1
        reason = "the edit is indented or quoted; it must start at the beginning of a line"
        return [Malformed(line=position + 1, reason=reason)], end
    if _NEARLY_BLOCK.match(line):
        far = min(position + _MAX_LINES, len(lines))
        ends = (i for i in range(position + 1, far) if _NEARLY_END.match(lines[i]))
        reason = f"a block begins with {line.strip()[:40]!r}, not with '<<<<<<< SEARCH' at the start of a line"
        end = next(ends, position)
        inside = [text.strip("> ") for text in lines[position + 1 : end]]
        quoted = tuple(itertools.takewhile(lambda text: not _NEARLY_DIVIDER.match(text), inside))
        return [Malformed(line=position + 1, reason=reason, quoted=quoted)], end + 1
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
    body = [text for text in lines[position + 1 : end] if text[:1] in {"-", " ", ""}]
    quoted = tuple(text[1:] for text in body) if _LONE_HUNK.match(line) else ()
    return [Malformed(line=position + 1, reason=reason, quoted=quoted)], end


# Codex patches. Source: openai/codex, codex-rs/apply-patch (grammar and apply_patch_tool_instructions.md).

_BEGIN: Final = re.compile(r"^\s*\*\*\* Begin Patch\s*$")
_END: Final = re.compile(r"^\s*\*\*\* End Patch\s*$")
_FILE: Final = re.compile(r"^\*\*\* (Update|Add|Delete) File: (.*\S)\s*$")
_MOVE: Final = re.compile(r"^\*\*\* Move to: (.*\S)\s*$")
_FILE_END: Final = re.compile(r"^\*\*\* End of File\s*$")
# The end of a patch whose last line a model omitted: of a here-document, or of the fence around it.
_OTHER_END: Final = re.compile(r"^(?:'?EOF'?|```+|~~~+)\s*$")


@dataclass(frozen=True)
class Patch:
    """The edits of one Codex patch, and the 0-based line after it."""

    hunks: tuple[Hunk, ...]
    malformed: tuple[Malformed, ...]
    end: int
    is_short: bool = False


@dataclass
class _Chunk:
    """One place of an updated file; `begin` is its 0-based line in the response."""

    begin: int
    scope: tuple[str, ...] = ()
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    changed: bool = False
    at_end: bool = False

    def take(self, line: str) -> bool:
        """Add one line; False if it cannot belong to a chunk."""
        mark, text = line[:1], line[1:]
        if mark not in {"", " ", "+", "-"}:
            return False
        if mark != "+":
            self.old.append(text)
        if mark != "-":
            self.new.append(text)
        self.changed |= mark in {"+", "-"}
        return True


def begins_patch(lines: Sequence[str], position: int) -> bool:
    """Return True if a Codex patch starts here; some models omit its first line."""
    return _BEGIN.match(lines[position]) is not None or _FILE.match(lines[position]) is not None


def read_patch(lines: Sequence[str], position: int) -> Patch:
    """Parse a Codex patch.

    A part that cannot be read spoils its file; a patch without an end spoils its last file.
    """
    begin = position
    position += _BEGIN.match(lines[position]) is not None
    hunks: list[Hunk] = []
    malformed: list[Malformed] = []
    headings: list[tuple[int, str]] = []
    while position < len(lines) and (match := _FILE.match(lines[position])):
        headings.append((position, match.group(2)))
        read = {"Update": _update, "Add": _addition, "Delete": _deletion}[match.group(1)]
        own, problem, position = read(lines, position + 1, match.group(2))
        if problem is None:
            hunks += own
        else:
            malformed.append(Malformed(line=headings[-1][0] + 1, reason=problem, path=match.group(2)))
    if position < len(lines) and _END.match(lines[position]):
        position += 1
    elif position >= len(lines) or not _OTHER_END.match(lines[position]):
        at, path = headings[-1] if headings else (begin, None)
        there = (
            f"line {position + 1} of the answer is not part of a patch" if position < len(lines) else "it is cut"
        )
        hunks = [hunk for hunk in hunks if hunk.path != path]
        if all(problem_block.path != path for problem_block in malformed):
            malformed.append(Malformed(line=at + 1, reason=f"the patch has no '*** End Patch': {there}", path=path))
    elif lines[position].strip().strip("'") == "EOF":
        position += 1
    if not headings and not malformed:
        malformed.append(Malformed(line=begin + 1, reason="the patch names no file"))
    spoilt = {problem_block.path for problem_block in malformed}
    return Patch(tuple(h for h in hunks if h.path not in spoilt), tuple(malformed), max(position, begin + 1))


def _ends_file(line: str) -> bool:
    return any(mark.match(line) for mark in (_FILE, _END, _BEGIN, _OTHER_END))


def _addition(lines: Sequence[str], position: int, path: str) -> tuple[list[Hunk], str | None, int]:
    text: list[str] = []
    problem = None
    while position < len(lines) and not _ends_file(lines[position]):
        line = lines[position]
        if not line.startswith("+") and any(rest.startswith("+") for rest in lines[position : position + 2]):
            problem = problem or f"line {position + 1} of the answer does not begin with '+'"
        elif not line.startswith("+"):
            break
        text.append(line[1:])
        position += 1
    return [Hunk(path=path, kind="create", replace=tuple(text), source="patch")], problem, position


def _deletion(lines: Sequence[str], position: int, path: str) -> tuple[list[Hunk], str | None, int]:
    del lines
    return [Hunk(path=path, kind="delete", source="patch")], None, position


def _update(lines: Sequence[str], position: int, path: str) -> tuple[list[Hunk], str | None, int]:
    own: list[Hunk] = []
    if position < len(lines) and (match := _MOVE.match(lines[position])):
        own.append(Hunk(path=path, kind="move", source="patch", to=match.group(1)))
        position += 1
    chunks, problem, position = _chunks(lines, position)
    for chunk in chunks:
        while chunk.old and chunk.new and not chunk.old[-1] and not chunk.new[-1]:
            chunk.old.pop()  # a blank line before the next chunk
            chunk.new.pop()
        if not chunk.changed:
            problem = problem or f"the part at line {chunk.begin + 1} of the answer changes nothing"
        elif not any(line.strip() for line in chunk.old) and not chunk.at_end:
            problem = problem or f"the part at line {chunk.begin + 1} of the answer quotes no line of the file"
        own.append(
            Hunk(
                path=path,
                kind="change",
                search=tuple(chunk.old),
                replace=tuple(chunk.new),
                source="patch",
                scope=chunk.scope,
                at_end=chunk.at_end,
            )
        )
    if not own:
        problem = problem or "the patch changes nothing in it"
    return own, problem, position


def _chunks(lines: Sequence[str], position: int) -> tuple[list[_Chunk], str | None, int]:
    """The chunks of one file, the first line after them, and their end."""
    chunks: list[_Chunk] = []
    scope: list[str] = []
    problem = None
    is_open = False
    while position < len(lines) and not _ends_file(lines[position]):
        line = lines[position]
        if line.startswith("@@"):
            scope = [*([] if is_open else scope), line.removeprefix("@@").strip().removesuffix("@@").strip()]
            is_open = False
        elif _FILE_END.match(line):
            if chunks:
                chunks[-1].at_end = True
            is_open = False
        else:
            if not is_open:
                chunks.append(_Chunk(position, tuple(text for text in scope if text)))
                scope, is_open = [], True
            if not chunks[-1].take(line):
                if not line.startswith(("<<<<<<< ", "diff --git ", "--- ")):
                    problem = problem or f"line {position + 1} of the answer is neither context nor change"
                break
        position += 1
    return [chunk for chunk in chunks if chunk.old or chunk.new], problem, position

"""Parse the edits of a model's response: search/replace blocks and unified diffs, in any mixture.

Text that looks like an edit but cannot be parsed with certainty is reported and never applied.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from app.code.edits.naming import FENCE, Naming, mentions, name_before, name_in_info, name_on
from app.code.edits.types import Answer, Hunk, HunkKind, Malformed

# The second form of each mark is Cline's.
_SEARCH = re.compile(r"^(?:<{5,9}\s*(?:SEARCH|ORIGINAL)|-{5,9}\s*SEARCH)\b")
_DIVIDER = re.compile(r"^={5,9}\s*$")
_REPLACE = re.compile(r"^(?:>{5,9}\s*(?:REPLACE|UPDATED)|\+{5,9}\s*REPLACE)\b")
_ELISION = re.compile(r"^\s*(?:#|//|--|/\*|<!--)?\s*(?:\.\.\.|…)\s*(?:\*/|-->)?\s*$")
_DIFF_LANGUAGES = frozenset({"diff", "patch", "udiff"})
# Words in a sentence that introduces a whole file instead of an edit.
_WHOLE = re.compile(
    r"\b(?:new|full|whole|complete|entire|updated|modified|revised|rewritten|changed)\b", re.IGNORECASE
)
# Fence languages for program output.
_OUTPUT_LANGUAGES = frozenset({"console", "output", "log", "terminal"})
# A larger response is not parsed: it was cut, or it is hostile.
MAX_ANSWER_BYTES = 4 << 20
_SHOWN_CHARS = 80


@dataclass
class _Reader:
    """`since`: lines after the last edit, without closed code. `fence_start`: line of the open fence."""

    lines: list[str]
    known: frozenset[str]
    position: int = 0
    hunks: list[Hunk] = field(default_factory=list)
    malformed: list[Malformed] = field(default_factory=list)
    whole_files: list[Malformed] = field(default_factory=list)
    last_path: str | None = None
    after: int = 0
    since: list[int] = field(default_factory=list)
    fence_start: int | None = None
    num_read: int = 0
    num_read_before: int = 0

    def done(self, position: int, last_path: str | None = None) -> None:
        """Record an edit that ends at `position`; a following block without a name may belong to `last_path`."""
        self.position = self.after = position
        self.since.clear()
        self.last_path = last_path
        self.num_read += 1


def parse_answer(text: str, project_paths: frozenset[str] = frozenset()) -> Answer:
    """Parse all edits of `text`, in order. `project_paths` resolves file names written with decoration."""
    if len(text) > MAX_ANSWER_BYTES:
        reason = f"the answer has {len(text)} characters, more than {MAX_ANSWER_BYTES}"
        return Answer(hunks=(), malformed=(Malformed(line=1, reason=reason),))
    reader = _Reader(contents(text), project_paths)
    calls: list[tuple[int, int]] = []
    while reader.position < len(reader.lines):
        line = reader.lines[reader.position]
        if _SEARCH.match(line):
            _read_block(reader)
        elif begins_git_header(reader.lines, reader.position) or is_file_header(reader.lines, reader.position):
            read = read_file_diff if is_file_header(reader.lines, reader.position) else read_git_diff
            diff = read(reader.lines, reader.position)
            reader.hunks += diff.hunks
            reader.malformed += diff.malformed
            reader.done(diff.end)
        elif _REPLACE.match(line):
            _fail(reader, reader.position, "a block ends here that never began")
            reader.done(reader.position + 1)
        elif (foreign := read_foreign(reader.lines, reader.position)) is not None:
            reader.malformed += foreign[0]
            reader.done(foreign[1])
        else:
            if is_tool_call(line):
                calls.append((reader.position, reader.num_read))
            _pass(reader)
    return _answer(reader, calls)


def _answer(reader: _Reader, calls: list[tuple[int, int]]) -> Answer:
    """The result; a tool call or whole file is reported only if no edit was parsed from it."""
    begun = [*calls, (len(reader.lines), reader.num_read)]
    for (position, num_read), (_, then) in pairwise(begun):
        if num_read == then:
            reader.malformed.append(read_tool_call(reader.lines, position))
    edited = {hunk.path for hunk in reader.hunks} | {found.path for found in reader.malformed}
    reader.malformed += [whole for whole in reader.whole_files if whole.path not in edited]
    return Answer(hunks=tuple(reader.hunks), malformed=tuple(reader.malformed))


def _pass(reader: _Reader) -> None:
    """Skip a line that starts no edit: prose, a name, or a fence."""
    number = reader.position
    reader.position += 1
    reader.since.append(number)
    fence = FENCE.match(reader.lines[number])
    if fence is None:
        return
    if reader.fence_start is None or fence.group(2).strip():
        reader.fence_start, reader.num_read_before = number, reader.num_read
        return
    begun, reader.fence_start = reader.fence_start, None
    while reader.since and reader.since[-1] >= begun:
        reader.since.pop()
    if reader.num_read == reader.num_read_before:
        _report_code(reader, begun, number)


def _report_code(reader: _Reader, begun: int, end: int) -> None:
    """Report a closed fence without a parsed edit, if it may be meant as one."""
    fence = FENCE.match(reader.lines[begun])
    info = fence.group(2) if fence else ""
    language = info.split()[0].lower() if info.split() else ""
    code = reader.lines[begun + 1 : end]
    if language in _DIFF_LANGUAGES:
        if any(line.startswith(("+", "-")) for line in code):
            _fail(reader, begun, "the diff has no '--- ' and '+++ ' lines that name a file")
        return
    path = _whole_file(reader, begun, info) if any(line.strip() for line in code) else None
    if path is not None and language not in _OUTPUT_LANGUAGES:
        reason = "a whole file in a fence is no edit; send SEARCH/REPLACE blocks"
        reader.whole_files.append(Malformed(line=begun + 1, reason=reason, path=path, code=tuple(code)))


def _whole_file(reader: _Reader, begun: int, info: str) -> str | None:
    """The file whose whole text a fence seems to contain; its name comes from the fence or a line next to it."""
    in_info = name_in_info(info, reader.known)
    if in_info is not None:
        return in_info
    first = reader.lines[begun + 1].strip()
    if first.startswith(("#", "//", "--", "/*", "<!--", ";")) and len(mentions(first, reader.known)) == 1:
        named = name_on(first, reader.known).path
        if named is not None:
            return named
    before = next((text for number in reversed(reader.since) if (text := reader.lines[number]).strip()), "")
    named = name_on(before, reader.known).path if before else None
    if named is not None and len(before.split()) <= 3:  # noqa: PLR2004 - a name, with a label or a mark
        return named
    spoken = mentions(before, reader.known)
    return spoken[0] if len(spoken) == 1 and _WHOLE.search(before) else None


def _read_block(reader: _Reader) -> None:
    begin = reader.position
    mark = _SEARCH.match(reader.lines[begin])
    assert mark is not None
    behind = reader.lines[begin][mark.end() :]
    naming = name_before(reader.lines, reader.since, reader.fence_start, behind, reader.known)
    path = naming.path
    halves, position, problem = _halves(reader.lines, begin + 1)
    search, replace = halves
    is_new = not any(line.strip() for line in search)
    if path is None and not is_new and not naming.doubt and not _other_file(reader, begin):
        path = reader.last_path
    if not problem and path is None:
        problem = _unnamed(naming)
    if not problem and any(_ELISION.match(line) for line in search):
        problem = "the text to find leaves lines out with '...'"
    if problem or path is None:
        _fail(reader, begin, problem, path)
        reader.done(position)
        return
    reader.hunks.append(
        Hunk(
            path=path,
            kind="create" if is_new else "change",
            search=() if is_new else tuple(search),
            replace=tuple(replace),
            source="block",
        )
    )
    reader.done(position, path)


def _halves(lines: list[str], position: int) -> tuple[tuple[list[str], list[str]], int, str]:
    """Return (search, replace), the line after the block, and the parse error (empty if none)."""
    search: list[str] = []
    replace: list[str] = []
    part = search
    while position < len(lines):
        line = lines[position]
        if _SEARCH.match(line):
            return (search, replace), position, "the block has no end before the next one begins"
        if _REPLACE.match(line):
            return (search, replace), position + 1, "the block has no divider" if part is search else ""
        if not _DIVIDER.match(line):
            part.append(line)
        elif part is search:
            part = replace
        else:
            reason = "the block has more than one divider, so its halves are not certain"
            return (search, replace), _end_of_block(lines, position), reason
        position += 1
    return (search, replace), position, "the answer ends inside the block"


def _unnamed(naming: Naming) -> str:
    if not naming.doubt:
        return "no file is named before the block"
    line = naming.doubt if len(naming.doubt) <= _SHOWN_CHARS else naming.doubt[:_SHOWN_CHARS] + "…"
    return f"no file is named before the block, or not for certain: {line!r}. The path must stand alone on its line"


def _other_file(reader: _Reader, begin: int) -> bool:
    """Return True if a line since the last edit mentions another file than that edit's."""
    named = {path for line in reader.lines[reader.after : begin] for path in mentions(line, reader.known)}
    return any(path != reader.last_path for path in named)


def _end_of_block(lines: list[str], position: int) -> int:
    """The line after the end of a block that is not parsed."""
    while position < len(lines) and not _REPLACE.match(lines[position]):
        if _SEARCH.match(lines[position]):
            return position
        position += 1
    return min(position + 1, len(lines))


def _fail(reader: _Reader, line: int, reason: str, path: str | None = None) -> None:
    reader.malformed.append(Malformed(line=line + 1, reason=reason, path=path))


# Edit formats that are not supported. They are recognized so that they are reported instead of ignored.

_CODEX_BEGIN: Final = re.compile(r"^\s*\*\*\* Begin Patch\s*$")
_CODEX_END: Final = re.compile(r"^\s*\*\*\* End Patch\s*$")
_CODEX_FILE: Final = re.compile(r"^\s*\*\*\* (?:Update|Add|Delete) File: (.+?)\s*$")
# Marks of a block that are indented, in lower case or have another name.
_NEARLY_BLOCK: Final = re.compile(
    r"^[\s>]*(?:<{5,9}\s*(?:SEARCH|ORIGINAL)|-{5,9}\s*SEARCH)\b|^<{7}(?:\s|$)", re.IGNORECASE
)
_NEARLY_END: Final = re.compile(r"^[\s>]*(?:>{5,9}|\+{5,9})\s*(?:REPLACE|UPDATED)\b|^>{7}(?:\s|$)", re.IGNORECASE)
_TOOL: Final = re.compile(
    r"^\s*<(write_to_file|replace_in_file|apply_diff|insert_content|search_and_replace|write_file|edit_file"
    r"|create_file|new_file|str_replace|str_replace_editor|apply_patch|multi_edit|edit|rewrite)\b[^<]*>"
)
_TOOL_FILE: Final = re.compile(r"<(path|file|file_?path|file_?name)>\s*(.*?)\s*</\1>|\b(?:path|file)=\"([^\"]+)\"")
# The file name is on one of the first lines of a call.
_CALL_HEAD: Final = 5
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
    named = _TOOL_FILE.search("\n".join(lines[position : position + _CALL_HEAD]))
    path = (named.group(2) or named.group(3)) if named else None
    reason = f"an edit as a <{match.group(1)}> call is not read; send SEARCH/REPLACE blocks"
    return Malformed(line=position + 1, reason=reason, path=path)


def read_foreign(lines: Sequence[str], position: int) -> tuple[list[Malformed], int] | None:
    """Reports for an edit in an unsupported format that starts here, and the line after it; None if none starts."""
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


# Unified diffs from models: the content is right, the line counts are often wrong.

_HUNK = re.compile(r"^@@(?: -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))?)? ?@@|^@@\s*$|^@@ \.\.\. @@")
_NO_NEWLINE = re.compile(r"^\\ ")
_GIT_LINES = ("diff --git ", "index ", "new file mode ", "deleted file mode ", "similarity index ")
# Lines of git between `diff --git` and the hunks. Source: git, diff-generate-patch.
_GIT_HEADER = re.compile(
    r"^(index|old mode|new mode|new file mode|deleted file mode|(?:dis)?similarity index|rename from|rename to"
    r"|copy from|copy to) (.+)$"
)
_GIT_NAMES = re.compile(r'^diff --git (?:"?a/)?(.+?)"? (?:"?b/)(.+?)"?$')
_BINARY = re.compile(r"^GIT binary patch$|^Binary files .+ differ$")
_PLAIN_MODE = "100644"


@dataclass(frozen=True)
class FileDiff:
    """The hunks of one file's diff, and the 0-based line after it."""

    hunks: tuple[Hunk, ...]
    malformed: tuple[Malformed, ...]
    end: int


def is_file_header(lines: Sequence[str], position: int) -> bool:
    """Return True if `--- old`, `+++ new` start here."""
    return (
        lines[position].startswith("--- ") and position + 1 < len(lines) and lines[position + 1].startswith("+++ ")
    )


def read_file_diff(lines: Sequence[str], position: int) -> FileDiff:
    """Parse from a file header to the end of its last hunk."""
    old, new = _without_prefixes(_name(lines[position][4:]), _name(lines[position + 1][4:]))
    path = old if new == "/dev/null" else new
    begin, position = position, position + 2
    hunks: list[Hunk] = []
    malformed: list[Malformed] = []
    if old != new and "/dev/null" not in {old, new}:
        malformed.append(Malformed(line=begin + 1, reason="the diff renames a file", path=path))
    while position < len(lines) and _HUNK.match(lines[position]):
        hunk, problem, position = _read_hunk(lines, position, path, old, new)
        if problem is not None:
            malformed.append(problem)
        elif hunk is not None and not malformed:
            hunks.append(hunk)
    if not hunks and not malformed:
        malformed.append(Malformed(line=begin + 1, reason="the diff has no hunk", path=path))
    return FileDiff(tuple(hunks), tuple(malformed), position)


def begins_git_header(lines: Sequence[str], position: int) -> bool:
    """Return True if git's header of a file starts here; some models omit its first line."""
    line = lines[position]
    if line.startswith("diff --git ") or _BINARY.match(line):
        return True
    match = _GIT_HEADER.match(line)
    follows = _GIT_HEADER.match(lines[position + 1]) if position + 1 < len(lines) else None
    return match is not None and (follows is not None or match.group(2)[:3] in {"100", "120", "160"})


def read_git_diff(lines: Sequence[str], position: int) -> FileDiff:
    """Parse one file's diff starting at git's header; report operations that only this header requests."""
    begin = position
    names = _GIT_NAMES.match(lines[position])
    position += lines[position].startswith("diff --git ")
    asked: dict[str, str] = {}
    while position < len(lines) and (match := _GIT_HEADER.match(lines[position])):
        asked[match.group(1)] = match.group(2)
        position += 1
    path = asked.get("rename to") or asked.get("copy to") or (names.group(2) if names else None)
    hunks: tuple[Hunk, ...] = ()
    malformed: tuple[Malformed, ...] = ()
    reasons = _beyond_text(asked)
    if position < len(lines) and is_file_header(lines, position):
        diff = read_file_diff(lines, position)
        hunks, malformed, position = diff.hunks, diff.malformed, diff.end
        path = hunks[0].path if hunks else path
        moves = any(f"{kind} from" in asked for kind in ("rename", "copy"))
        if moves or asked.get("new file mode", _PLAIN_MODE)[:3] != _PLAIN_MODE[:3]:  # not a regular file but a link
            hunks = ()
    elif position < len(lines) and _BINARY.match(lines[position]):
        reasons.append("a patch of a binary file is not read")
        position = _after_binary(lines, position)
    elif not reasons:
        kind = next((k for k in ("new file mode", "deleted file mode") if k in asked), None)
        reasons.append(f"the diff has no hunk ({kind})" if kind else "the diff has no hunk")
    reported = {problem.reason for problem in malformed}
    extra = [Malformed(line=begin + 1, reason=reason, path=path) for reason in reasons if reason not in reported]
    return FileDiff(hunks, (*malformed, *extra), max(position, begin + 1))


def _beyond_text(asked: Mapping[str, str]) -> list[str]:
    """Operations in a header that are not in the hunks; none of them is done."""
    moves = {"rename": "the diff renames a file", "copy": "the diff copies a file"}
    reasons = [why for kind, why in moves.items() if f"{kind} from" in asked or f"{kind} to" in asked]
    if "new mode" in asked or "old mode" in asked:
        reasons.append(f"the diff changes the file's mode to {asked.get('new mode', 'another')}, which is not done")
    mode = asked.get("new file mode", _PLAIN_MODE)
    if mode != _PLAIN_MODE:
        reasons.append(f"the diff makes a file of mode {mode}; only plain files ({_PLAIN_MODE}) are made")
    return reasons


def _after_binary(lines: Sequence[str], position: int) -> int:
    """The line after a binary patch: its lines have no blanks, and its two parts each end with an empty line."""
    position += 1
    while position < len(lines) and re.match(r"^(?:\S{2,}|(?:literal|delta) \d+|)$", lines[position]):
        if lines[position].startswith(("```", "~~~")):
            break
        position += 1
    return position


@dataclass
class _Body:
    """The lines of one hunk read so far."""

    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    changed: bool = False
    no_newline: bool = False

    def take(self, line: str, *, complete: bool) -> bool:
        """Add one line; False if it cannot belong to a hunk."""
        if _NO_NEWLINE.match(line):
            self.no_newline = True
        elif line.startswith(("+", "-")):
            (self.new if line[0] == "+" else self.old).append(line[1:])
            self.changed = True
        elif line.startswith(" ") or (not line and not complete):
            # An empty line is a blank context line that lost its single space.
            self.old.append(line[1:])
            self.new.append(line[1:])
        else:
            return False
        return True

    def drop_unclaimed_blanks(self, old_count: int | None) -> None:
        """Remove blank lines after the hunk (before a fence or prose), which are not its context."""
        old, new = self.old, self.new
        while old and new and not old[-1] and not new[-1] and (old_count is None or len(old) > old_count):
            old.pop()
            new.pop()


def _read_hunk(
    lines: Sequence[str], position: int, path: str, old_name: str, new_name: str
) -> tuple[Hunk | None, Malformed | None, int]:
    begin = position
    header = _HUNK.match(lines[position])
    assert header is not None
    hint, old_count = header.group(1), _count(header.group(1), header.group(2))
    new_count = _count(header.group(3), header.group(4))
    body = _Body()
    position += 1
    while position < len(lines):
        line = lines[position]
        complete = old_count is not None and len(body.old) == old_count and len(body.new) == new_count
        if _ends_hunk(lines, position, complete=complete):
            break
        if not body.take(line, complete=complete):
            if not line or complete:
                break
            reason = f"line {position + 1} of the answer is neither context nor change"
            return None, Malformed(line=begin + 1, reason=reason, path=path), _next_hunk(lines, position)
        position += 1
    body.drop_unclaimed_blanks(old_count)
    hunk = _hunk(body, hint, path, old_name, new_name)
    if isinstance(hunk, str):
        return None, Malformed(line=begin + 1, reason=hunk, path=path), position
    return hunk, None, position


def _hunk(body: _Body, hint: str | None, path: str, old_name: str, new_name: str) -> Hunk | str:
    """The hunk, or the reason why it is invalid."""
    if not body.changed:
        return "the hunk changes nothing"
    kind: HunkKind = "change"
    if new_name == "/dev/null":
        kind = "delete"
    elif old_name == "/dev/null" or not any(line.strip() for line in body.old):
        kind = "create"
        if old_name != "/dev/null" and hint not in {None, "0"}:
            return "the hunk quotes no line of the file, so its place is not certain"
    return Hunk(
        path=path,
        kind=kind,
        search=tuple(body.old),
        replace=tuple(body.new),
        source="diff",
        ends_without_newline=body.no_newline,
    )


def _ends_hunk(lines: Sequence[str], position: int, *, complete: bool) -> bool:
    """Return True if a new hunk, file or fence starts here. `--- x` may also be a removed line `-- x`."""
    line = lines[position]
    if _HUNK.match(line) or line.startswith(("```", "~~~", *_GIT_LINES)):
        return True
    return is_file_header(lines, position) and (complete or _hunk_follows(lines, position + 2))


def _count(start: str | None, count: str | None) -> int | None:
    if start is None:
        return None
    return 1 if count is None else int(count)


def _hunk_follows(lines: Sequence[str], position: int) -> bool:
    return position < len(lines) and _HUNK.match(lines[position]) is not None


def _next_hunk(lines: Sequence[str], position: int) -> int:
    while position < len(lines):
        if _HUNK.match(lines[position]) or is_file_header(lines, position):
            break
        if lines[position].startswith("```"):
            break
        position += 1
    return position


def _name(text: str) -> str:
    """The file name of a header line, without timestamp and git's quoting."""
    name = text.split("\t", 1)[0].strip()
    if len(name) > 1 and name[0] == name[-1] == '"':
        try:
            return name[1:-1].encode("latin-1").decode("unicode_escape").encode("latin-1").decode()
        except UnicodeError:
            return name[1:-1]
    return name


def _without_prefixes(old: str, new: str) -> tuple[str, str]:
    """Remove git's a/ and b/ prefixes; if both names start with a/, it is a real folder."""
    if old.startswith("a/") and (new.startswith("b/") or new == "/dev/null"):
        old = old[2:]
        return old, new.removeprefix("b/")
    if old == "/dev/null":
        return old, new.removeprefix("b/")
    return old, new


# Text as lines that keep their endings.


def split(text: str) -> list[tuple[str, str]]:
    """(content, ending) of each line. Only LF and CRLF end a line; form feeds and U+2028 are content."""
    if not text:
        return []
    parts = text.split("\n")
    lines = [(p[:-1], "\r\n") if p.endswith("\r") else (p, "\n") for p in parts[:-1]]
    if parts[-1]:
        lines.append((parts[-1], ""))
    return lines


def contents(text: str) -> list[str]:
    """The lines without their endings."""
    return [content for content, _ in split(text)]


def ending_of(lines: list[tuple[str, str]]) -> str:
    """The most common line ending; LF if there is none."""
    counted = Counter(ending for _, ending in lines if ending)
    return counted.most_common(1)[0][0] if counted else "\n"


def indent_of(line: str) -> str:
    """Leading tabs and spaces."""
    return line[: len(line) - len(line.lstrip(" \t"))]

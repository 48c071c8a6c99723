"""Parse the edits of a model's response: blocks, unified diffs, Codex patches and whole files, in any mixture.

Text that looks like an edit but cannot be parsed with certainty is reported and never applied.
"""

import re
from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise

from app.code.edits.diffs import FileDiff, begins_git_header, is_file_header, read_file_diff, read_git_diff
from app.code.edits.foreign import (
    Patch,
    begins_patch,
    is_tool_call,
    read_foreign,
    read_patch,
    read_tool_call,
    read_unfenced,
    reason_to_report,
)
from app.code.edits.naming import FENCE, Naming, mentions, name_before, name_in_info, name_on
from app.code.edits.types import Hunk, Malformed, ParsedEdits

# The second form of each mark is Cline's.
_SEARCH = re.compile(r"^(?:<{5,9}\s*(?:SEARCH|ORIGINAL)|-{5,9}\s*SEARCH)\b")
_DIVIDER = re.compile(r"^={5,9}\s*$")
_REPLACE = re.compile(r"^(?:>{5,9}\s*(?:REPLACE|UPDATED)|\+{5,9}\s*REPLACE)\b")
_DIFF_LANGUAGES = frozenset({"diff", "patch", "udiff"})
# Words in a sentence that introduces a whole file instead of an edit.
_WHOLE = re.compile(
    r"\b(?:new|full|whole|complete|entire|updated|modified|revised|rewritten|changed)\b", re.IGNORECASE
)
# Fence languages for program output.
_OUTPUT_LANGUAGES = frozenset({"console", "output", "log", "terminal"})
# A larger response is not parsed: it was cut, or it is hostile.
MAX_ANSWER_BYTES = 4 << 20
# More lines of a block that look like its divider are not headings.
_MAX_DIVIDERS = 8
_SHOWN_CHARS = 80
# Markdown: a fence of more marks holds shorter ones, and a line indented this far is no fence.
_SHORT_FENCE = 3
_CODE_INDENT = 4
# Fences that differ in marks or indentation, each of which is matched in one pass. Real answers have up to three.
_MAX_FENCE_KINDS = 8
_TEXT_LANGUAGES = frozenset({"md", "markdown", "mdx"})
_TEXT_ENDINGS = (".md", ".markdown", ".mdx")


@dataclass
class _Reader:
    """`since`: lines after the last edit, without blank ones and closed code. `fences`: lines of all fences.

    `fence_start`: line of the open fence. `closings`: for a kind of fence, the closing line of each fence (-1:
    none), and whether there are fences between the two.
    """

    lines: list[str]
    known: frozenset[str]
    position: int = 0
    hunks: list[Hunk] = field(default_factory=list)
    malformed: list[Malformed] = field(default_factory=list)
    whole_files: list[Hunk] = field(default_factory=list)
    last_path: str | None = None
    after: int = 0
    since: list[int] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    closings: dict[tuple[str, int], "tuple[array[int], bytearray]"] = field(default_factory=dict)
    fence_start: int | None = None
    num_read: int = 0
    num_read_before: int = 0
    is_ended: bool = True

    def done(self, position: int, last_path: str | None = None) -> None:
        """Record an edit that ends at `position`; a following block without a name may belong to `last_path`."""
        self.position = self.after = position
        self.since.clear()
        self.last_path = last_path
        self.num_read += 1


def parse_answer(text: str, project_paths: frozenset[str] = frozenset(), *, is_cut: bool = False) -> ParsedEdits:
    """Parse all edits of `text`, in order. `project_paths` resolves file names written with decoration.

    `is_cut`: the model reached its limit of tokens, so more edits of the last file may be missing.
    """
    if len(text) > MAX_ANSWER_BYTES:
        reason = f"the answer has {len(text)} characters, more than {MAX_ANSWER_BYTES}"
        return ParsedEdits(hunks=(), malformed=(Malformed(line=1, reason=reason),))
    lines = contents(text.removeprefix("\ufeff"))
    fences = [number for number, line in enumerate(lines) if FENCE.match(line)]
    reader = _Reader(lines, project_paths, fences=fences, is_ended=text.endswith("\n"))
    calls: list[tuple[int, int]] = []
    while reader.position < len(reader.lines):
        line = reader.lines[reader.position]
        if _SEARCH.match(line):
            _read_block(reader)
        elif begins_git_header(reader.lines, reader.position) or is_file_header(reader.lines, reader.position):
            read = read_file_diff if is_file_header(reader.lines, reader.position) else read_git_diff
            diff = read(reader.lines, reader.position)
            _take(reader, diff)
        elif begins_patch(reader.lines, reader.position):
            _take(reader, read_patch(reader.lines, reader.position))
        elif _REPLACE.match(line):
            _fail(reader, reader.position, "a block ends here that never began")
            reader.done(reader.position + 1)
        elif (foreign := _foreign(reader)) is not None:
            reader.malformed += foreign[0]
            reader.done(foreign[1])
        else:
            if is_tool_call(line):
                calls.append((reader.position, reader.num_read))
            _pass(reader)
    answer = _answer(reader, calls)
    if is_cut and (answer.hunks or answer.malformed):
        last = answer.hunks[-1].path if answer.hunks else None
        cut_off = Malformed(line=len(reader.lines), reason="the answer reached its limit of tokens", path=last)
        return replace(answer, malformed=(*answer.malformed, cut_off))
    return answer


def _foreign(reader: _Reader) -> tuple[list[Malformed], int] | None:
    """Reports for an edit that is not read; a fence is judged as a whole when it closes."""
    call = read_unfenced(reader.lines, reader.position) if reader.fence_start is None else None
    return call or read_foreign(reader.lines, reader.position)


def _take(reader: _Reader, read: FileDiff | Patch) -> None:
    reader.malformed += read.malformed
    if (
        read.hunks
        and read.end >= len(reader.lines)
        and (reader.fence_start is not None or (not reader.is_ended and read.is_short))
    ):
        _fail(reader, reader.position, "the answer ends inside the edit", read.hunks[-1].path)
    else:
        reader.hunks += read.hunks
    reader.done(read.end)


def _answer(reader: _Reader, calls: list[tuple[int, int]]) -> ParsedEdits:
    """The result; a tool call or whole file is reported only if no edit was parsed from it."""
    starts = [*calls, (len(reader.lines), reader.num_read)]
    for (position, num_read), (_, then) in pairwise(starts):
        if num_read == then:
            reader.malformed.append(read_tool_call(reader.lines, position))
    _report_open_code(reader)
    edited = {hunk.path for hunk in reader.hunks} | {malformed.path for malformed in reader.malformed}
    reader.hunks += [whole for whole in reader.whole_files if whole.path not in edited]
    # Models repeat an edit; the second one changes nothing.
    return ParsedEdits(hunks=tuple(dict.fromkeys(reader.hunks)), malformed=tuple(reader.malformed))


def _report_open_code(reader: _Reader) -> None:
    """Report the text of a whole file whose fence is still open at the end of the response."""
    fence_line = reader.fence_start
    if fence_line is None or reader.num_read != reader.num_read_before or fence_line + 1 >= len(reader.lines):
        return
    reader.since = [number for number in reader.since if number < fence_line]
    fence = FENCE.match(reader.lines[fence_line])
    path = _complete_file(reader, fence_line, fence.group(2) if fence else "")
    if path is not None:
        _fail(reader, fence_line, "the answer ends inside the code", path)


def _pass(reader: _Reader) -> None:
    """Skip a line that starts no edit: prose, a name, or a fence."""
    number = reader.position
    reader.position += 1
    fence = FENCE.match(reader.lines[number])
    if fence is None or _is_inside(reader, fence):
        if reader.lines[number].strip():
            reader.since.append(number)
        return
    if reader.fence_start is None or fence.group(2).strip():
        reader.fence_start, reader.num_read_before = number, reader.num_read
        if not _take_text(reader, number, fence):
            reader.since.append(number)
        return
    fence_line, reader.fence_start = reader.fence_start, None
    while reader.since and reader.since[-1] >= fence_line:
        reader.since.pop()
    if reader.num_read == reader.num_read_before:
        _report_code(reader, fence_line, number)


def _is_inside(reader: _Reader, fence: re.Match[str]) -> bool:
    """Return True if CommonMark treats this fence as text inside the open code block."""
    if reader.fence_start is None:
        return False
    opening = FENCE.match(reader.lines[reader.fence_start])
    assert opening is not None
    if len(indent_of(fence.string)) >= len(indent_of(opening.string)) + _CODE_INDENT:
        return True
    return not fence.group(2).strip() and not _closes(fence, opening)


def _closes(fence: re.Match[str], opening: re.Match[str]) -> bool:
    mark = opening.group(1)
    return fence.group(1).startswith(mark) and not fence.group(2).strip()


def _take_text(reader: _Reader, begin: int, opening: re.Match[str]) -> bool:
    """Take the whole text of a named Markdown file from its fence to its end: fences in it are text, not edits.

    Returns False if this fence does not open such a file.
    """
    is_long = len(opening.group(1)) > _SHORT_FENCE
    language = (opening.group(2).split() or [""])[0].lower()
    if begin + 1 >= len(reader.lines) or _starts_edit(reader.lines, begin + 1):
        return False
    path = _complete_file(reader, begin, opening.group(2))
    if path is None or not (is_long or language in _TEXT_LANGUAGES or path.lower().endswith(_TEXT_ENDINGS)):
        return False
    closing = _closing(reader, begin, opening)
    if closing is None:
        return False
    end, is_filled = closing
    later = bisect_left(reader.fences, end + 1)
    is_doubtful = not is_long and _is_bare(reader, later)
    if not is_filled and not is_doubtful:
        return False
    reader.fence_start = None
    if is_doubtful:
        reason = "its text seems to contain fences as long as the fence around it, so its end is not certain"
        _fail(reader, begin, reason, path)
        # Nothing up to the last of these fences is an edit.
        while _is_bare(reader, later):
            end = reader.fences[later]
            later += 1
    else:
        code = tuple(reader.lines[begin + 1 : end])
        reader.whole_files.append(Hunk(path=path, kind="whole", replace=code, source="fence"))
    reader.position = end + 1
    return True


def _is_bare(reader: _Reader, index: int) -> bool:
    """Return True if there is a fence with this index and it names no language."""
    fence = FENCE.match(reader.lines[reader.fences[index]]) if index < len(reader.fences) else None
    return fence is not None and not fence.group(2).strip()


def _closing(reader: _Reader, begin: int, opening: re.Match[str]) -> tuple[int, bool] | None:
    """The line that closes a fence, and whether fences are inside; None if no line closes it."""
    kind = opening.group(1), len(indent_of(opening.string))
    if kind not in reader.closings:
        if len(reader.closings) == _MAX_FENCE_KINDS:
            return None
        reader.closings[kind] = _closings(reader, opening)
    index = bisect_left(reader.fences, begin)
    ends, filled = reader.closings[kind]
    return None if ends[index] < 0 else (ends[index], bool(filled[index]))


def _closings(reader: _Reader, opening: re.Match[str]) -> "tuple[array[int], bytearray]":
    """What `_Reader.closings` has for fences like `opening`, in one pass: answers have up to a million fences.

    Inside a fence of three marks, a fence with a language opens and the next one without closes.
    """
    limit = len(indent_of(opening.string)) + _CODE_INDENT
    ends, filled = array("q", [-1]) * len(reader.fences), bytearray(len(reader.fences))
    depth, rank = 0, 0
    pending: list[tuple[int, int, int]] = []  # (depth, index, rank) of fences that nothing has closed yet
    for index, number in enumerate(reader.fences):
        fence = FENCE.match(reader.lines[number])
        if fence is None or len(indent_of(fence.string)) >= limit:
            continue
        if len(opening.group(1)) > _SHORT_FENCE:
            depth -= _closes(fence, opening)
        else:
            depth += 1 if fence.group(2).strip() else -1
        rank += 1
        while pending and pending[-1][0] > depth:
            _, opened, opened_rank = pending.pop()
            ends[opened], filled[opened] = number, rank > opened_rank + 1
        pending.append((depth, index, rank))
    return ends, filled


def _starts_edit(lines: list[str], position: int) -> bool:
    return (
        _SEARCH.match(lines[position]) is not None
        or begins_git_header(lines, position)
        or is_file_header(lines, position)
        or begins_patch(lines, position)
    )


def _report_code(reader: _Reader, first: int, end: int) -> None:
    """Report a closed fence without a parsed edit, if it may be intended as one."""
    fence = FENCE.match(reader.lines[first])
    info = fence.group(2) if fence else ""
    language = info.split()[0].lower() if info.split() else ""
    code = reader.lines[first + 1 : end]
    if language in _DIFF_LANGUAGES:
        if any(line.startswith(("+", "-")) for line in code):
            _fail(reader, first, "the diff has no '--- ' and '+++ ' lines that name a file")
        return
    reason = reason_to_report(code, language) if language not in _OUTPUT_LANGUAGES else None
    if reason is not None:
        _fail(reader, first, reason)
        return
    path = _complete_file(reader, first, info) if any(line.strip() for line in code) else None
    if path is not None and language not in _OUTPUT_LANGUAGES:
        reader.whole_files.append(Hunk(path=path, kind="whole", replace=tuple(code), source="fence"))


def _complete_file(reader: _Reader, fence: int, info: str) -> str | None:
    """The file whose whole text a fence seems to contain; its name comes from the fence or a line next to it."""
    in_info = name_in_info(info, reader.known)
    if in_info is not None:
        return in_info
    first = reader.lines[fence + 1].strip()
    if first.startswith(("#", "//", "--", "/*", "<!--", ";")) and len(mentions(first, reader.known)) == 1:
        path = name_on(first, reader.known).path
        if path is not None:
            return path
    before = next((text for number in reversed(reader.since) if (text := reader.lines[number]).strip()), "")
    path = name_on(before, reader.known).path if before else None
    if path is not None and len(before.split()) <= 3:  # noqa: PLR2004 - a name, with a label or a mark
        return path
    mentioned = mentions(before, reader.known)
    return mentioned[0] if len(mentioned) == 1 and _WHOLE.search(before) else None


def _read_block(reader: _Reader) -> None:
    begin = reader.position
    mark = _SEARCH.match(reader.lines[begin])
    assert mark is not None
    behind = reader.lines[begin][mark.end() :]
    naming = name_before(reader.lines, reader.since, reader.fence_start, behind, reader.known)
    path = naming.path
    halves, position, problem = _halves(reader.lines, begin + 1)
    search, new_lines = halves[0]
    is_new = not any(line.strip() for line in search)
    if path is None and not is_new and not naming.doubt and not _other_file(reader, begin):
        path = reader.last_path
    if not problem and path is None:
        problem = _unnamed(naming)
    if problem or path is None:
        malformed = Malformed(line=begin + 1, reason=problem, path=path, quoted=() if path else search)
        reader.malformed.append(malformed)
        reader.done(position)
        return
    reader.hunks.append(
        Hunk(
            path=path,
            kind="create" if is_new else "change",
            search=() if is_new else search,
            replace=new_lines,
            source="block",
            others=tuple(halves[1:]),
        )
    )
    reader.done(position, path)


# (search, replace)
_Halves = tuple[tuple[str, ...], tuple[str, ...]]


def _halves(lines: list[str], position: int) -> tuple[list[_Halves], int, str]:
    """Return the halves, the line after the block, and the parse error (empty if none).

    A heading's underline looks like the divider; then there are several ways to divide the block.
    """
    begin = position
    dividers: list[int] = []
    problem = "the answer ends inside the block"
    while position < len(lines):
        if _SEARCH.match(lines[position]):
            problem = "the block has no end before the next one begins"
            break
        if _REPLACE.match(lines[position]):
            problem = "" if dividers else "the block has no divider"
            break
        if _DIVIDER.match(lines[position]):
            dividers.append(position)
        position += 1
    if not problem and len(dividers) > _MAX_DIVIDERS:
        problem = f"the block has {len(dividers)} dividers, so its halves are not certain"
    ways = [(tuple(lines[begin:at]), tuple(lines[at + 1 : position])) for at in dividers[:_MAX_DIVIDERS]]
    is_ended = position < len(lines) and _REPLACE.match(lines[position]) is not None
    return ways or [((), ())], position + is_ended, problem


def _unnamed(naming: Naming) -> str:
    if not naming.doubt:
        return "no file is named before the block"
    line = naming.doubt if len(naming.doubt) <= _SHOWN_CHARS else naming.doubt[:_SHOWN_CHARS] + "…"
    return f"no file is named before the block, or not for certain: {line!r}. The path must stand alone on its line"


def _other_file(reader: _Reader, begin: int) -> bool:
    """Return True if a line since the last edit mentions a file other than that edit's."""
    mentioned = {path for line in reader.lines[reader.after : begin] for path in mentions(line, reader.known)}
    return any(path != reader.last_path for path in mentioned)


def _fail(reader: _Reader, line: int, reason: str, path: str | None = None) -> None:
    reader.malformed.append(Malformed(line=line + 1, reason=reason, path=path))


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

"""Read the edits out of a model's answer: search/replace blocks and unified diffs, in any mixture.

Whatever looks like an edit and cannot be read with certainty is reported, never guessed at.
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise

from app.code.edits.foreign import is_tool_call, read_foreign, read_tool_call
from app.code.edits.lines import contents
from app.code.edits.naming import FENCE, Naming, mentions, name_before, name_in_info, name_on
from app.code.edits.types import Answer, Hunk, Malformed
from app.code.edits.unified import begins_git_header, is_file_header, read_file_diff, read_git_diff

# The second form of each mark is Cline's.
_SEARCH = re.compile(r"^(?:<{5,9}\s*(?:SEARCH|ORIGINAL)|-{5,9}\s*SEARCH)\b")
_DIVIDER = re.compile(r"^={5,9}\s*$")
_REPLACE = re.compile(r"^(?:>{5,9}\s*(?:REPLACE|UPDATED)|\+{5,9}\s*REPLACE)\b")
_ELISION = re.compile(r"^\s*(?:#|//|--|/\*|<!--)?\s*(?:\.\.\.|…)\s*(?:\*/|-->)?\s*$")
_DIFF_LANGUAGES = frozenset({"diff", "patch", "udiff"})
# Words of a sentence that leads to a whole file instead of an edit.
_WHOLE = re.compile(
    r"\b(?:new|full|whole|complete|entire|updated|modified|revised|rewritten|changed)\b", re.IGNORECASE
)
# Languages of fences that show what a program says.
_OUTPUT_LANGUAGES = frozenset({"console", "output", "log", "terminal"})
# An answer larger than this is not read at all: it was cut, or it is hostile.
MAX_ANSWER_BYTES = 4 << 20
_SHOWN_CHARS = 80


@dataclass
class _Reader:
    """`since`: the lines after the last edit, without closed code. `fence_start`: of the fence that is open."""

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
        """An edit was read up to `position`; a block without a name after it may be for `last_path`."""
        self.position = self.after = position
        self.since.clear()
        self.last_path = last_path
        self.num_read += 1


def parse_answer(text: str, project_paths: frozenset[str] = frozenset()) -> Answer:
    """Every edit of `text`, in order. `project_paths` settles file names written with decoration."""
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
    """All that was read; a call or a whole file is reported only where no edit of it was."""
    begun = [*calls, (len(reader.lines), reader.num_read)]
    for (position, num_read), (_, then) in pairwise(begun):
        if num_read == then:
            reader.malformed.append(read_tool_call(reader.lines, position))
    edited = {hunk.path for hunk in reader.hunks} | {found.path for found in reader.malformed}
    reader.malformed += [whole for whole in reader.whole_files if whole.path not in edited]
    return Answer(hunks=tuple(reader.hunks), malformed=tuple(reader.malformed))


def _pass(reader: _Reader) -> None:
    """A line that begins no edit: prose, a name, or the line of a fence."""
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
    """A closed fence in which no edit was read may have been meant as one."""
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
    """The file whose whole text a fence seems to hold, by the fence's line, the one before or the first in it."""
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
    """What to find and what to put there, the line after the block, and why it cannot be read (empty: it can)."""
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
    """Whether anything since the last edit speaks of another file than that edit's."""
    named = {path for line in reader.lines[reader.after : begin] for path in mentions(line, reader.known)}
    return any(path != reader.last_path for path in named)


def _end_of_block(lines: list[str], position: int) -> int:
    """The line after the end of a block that is not read."""
    while position < len(lines) and not _REPLACE.match(lines[position]):
        if _SEARCH.match(lines[position]):
            return position
        position += 1
    return min(position + 1, len(lines))


def _fail(reader: _Reader, line: int, reason: str, path: str | None = None) -> None:
    reader.malformed.append(Malformed(line=line + 1, reason=reason, path=path))

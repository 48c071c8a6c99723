"""Unified diffs as models write them: right in content, often wrong in their line counts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.code.edits.types import Hunk, HunkKind, Malformed

_HUNK = re.compile(r"^@@(?: -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))?)? ?@@|^@@\s*$|^@@ \.\.\. @@")
_NO_NEWLINE = re.compile(r"^\\ ")
_GIT_LINES = ("diff --git ", "index ", "new file mode ", "deleted file mode ", "similarity index ")
# What git writes between `diff --git` and the hunks. Source: git, diff-generate-patch.
_GIT_HEADER = re.compile(
    r"^(index|old mode|new mode|new file mode|deleted file mode|(?:dis)?similarity index|rename from|rename to"
    r"|copy from|copy to) (.+)$"
)
_GIT_NAMES = re.compile(r'^diff --git (?:"?a/)?(.+?)"? (?:"?b/)(.+?)"?$')
_BINARY = re.compile(r"^GIT binary patch$|^Binary files .+ differ$")
_PLAIN_MODE = "100644"


@dataclass(frozen=True)
class FileDiff:
    """The hunks of one file's diff and the 0-based line after it."""

    hunks: tuple[Hunk, ...]
    malformed: tuple[Malformed, ...]
    end: int


def is_file_header(lines: Sequence[str], position: int) -> bool:
    """Whether `--- old`, `+++ new` begin here."""
    return (
        lines[position].startswith("--- ") and position + 1 < len(lines) and lines[position + 1].startswith("+++ ")
    )


def read_file_diff(lines: Sequence[str], position: int) -> FileDiff:
    """Read from a file header to the end of its last hunk."""
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
    """Whether what git writes before the hunks of a file begins here; some models leave its first line out."""
    line = lines[position]
    if line.startswith("diff --git ") or _BINARY.match(line):
        return True
    match = _GIT_HEADER.match(line)
    follows = _GIT_HEADER.match(lines[position + 1]) if position + 1 < len(lines) else None
    return match is not None and (follows is not None or match.group(2)[:3] in {"100", "120", "160"})


def read_git_diff(lines: Sequence[str], position: int) -> FileDiff:
    """Read one file's diff from git's own header on; what only that header asks for is reported."""
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
        if moves or asked.get("new file mode", _PLAIN_MODE)[:3] != _PLAIN_MODE[:3]:  # no plain file, but a link
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
    """What a header asks for that no hunk does; none of it is done."""
    moves = {"rename": "the diff renames a file", "copy": "the diff copies a file"}
    reasons = [why for kind, why in moves.items() if f"{kind} from" in asked or f"{kind} to" in asked]
    if "new mode" in asked or "old mode" in asked:
        reasons.append(f"the diff changes the file's mode to {asked.get('new mode', 'another')}, which is not done")
    mode = asked.get("new file mode", _PLAIN_MODE)
    if mode != _PLAIN_MODE:
        reasons.append(f"the diff makes a file of mode {mode}; only plain files ({_PLAIN_MODE}) are made")
    return reasons


def _after_binary(lines: Sequence[str], position: int) -> int:
    """The line after a binary patch: its lines have no blanks, and two parts end with an empty line each."""
    position += 1
    while position < len(lines) and re.match(r"^(?:\S{2,}|(?:literal|delta) \d+|)$", lines[position]):
        if lines[position].startswith(("```", "~~~")):
            break
        position += 1
    return position


@dataclass
class _Body:
    """The lines of one hunk, as far as read."""

    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    changed: bool = False
    no_newline: bool = False

    def take(self, line: str, *, complete: bool) -> bool:
        """Add one line; False when it can belong to no hunk."""
        if _NO_NEWLINE.match(line):
            self.no_newline = True
        elif line.startswith(("+", "-")):
            (self.new if line[0] == "+" else self.old).append(line[1:])
            self.changed = True
        elif line.startswith(" ") or (not line and not complete):
            # An empty line is a blank context line whose single space was lost.
            self.old.append(line[1:])
            self.new.append(line[1:])
        else:
            return False
        return True

    def drop_unclaimed_blanks(self, old_count: int | None) -> None:
        """Blank lines after the hunk (before a fence or the prose that follows) are no context of it."""
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
    """The hunk, or the reason why it is none."""
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
    """Whether a new hunk, file or fence begins here. `--- x` may also be a removed line `-- x`."""
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
    """The file name of a header line, without its timestamp and git's quoting."""
    name = text.split("\t", 1)[0].strip()
    if len(name) > 1 and name[0] == name[-1] == '"':
        try:
            return name[1:-1].encode("latin-1").decode("unicode_escape").encode("latin-1").decode()
        except UnicodeError:
            return name[1:-1]
    return name


def _without_prefixes(old: str, new: str) -> tuple[str, str]:
    """Drop git's a/ and b/; two names that both begin with a/ are in a folder a."""
    if old.startswith("a/") and (new.startswith("b/") or new == "/dev/null"):
        old = old[2:]
        return old, new.removeprefix("b/")
    if old == "/dev/null":
        return old, new.removeprefix("b/")
    return old, new

"""Unified diffs from models: the content is right, the line counts are often wrong.

Renames, modes, new and deleted files of git's extended header are read. Copies, links and binary patches are
reported.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.code.edits.types import Hunk, HunkKind, Malformed

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
_MODES = {"100644": False, "100755": True}


@dataclass(frozen=True)
class FileDiff:
    """The hunks of one file's diff, and the 0-based line after it.

    `is_short`: the last hunk has fewer lines than its header says.
    """

    hunks: tuple[Hunk, ...]
    malformed: tuple[Malformed, ...]
    end: int
    is_short: bool = False


def is_file_header(lines: Sequence[str], position: int) -> bool:
    """Return True if `--- old`, `+++ new` start here."""
    return (
        lines[position].startswith("--- ") and position + 1 < len(lines) and lines[position + 1].startswith("+++ ")
    )


def read_file_diff(lines: Sequence[str], position: int, *, is_git: bool = False) -> FileDiff:
    """Parse from a file header to the end of its last hunk. `is_git`: git's header has named the files."""
    old, new = _without_prefixes(_name(lines[position][4:]), _name(lines[position + 1][4:]))
    path = new if old == "/dev/null" else old
    begin, position = position, position + 2
    hunks: list[Hunk] = []
    malformed: list[Malformed] = []
    if old != new and "/dev/null" not in {old, new} and not is_git:
        reason = f"the diff names two files, {old} and {new}, and no rename"
        malformed.append(Malformed(line=begin + 1, reason=reason, path=path))
    is_short = False
    while position < len(lines) and (header := _HUNK.match(lines[position])):
        hunk, problem, position = _read_hunk(lines, position, path, old, new)
        is_short = hunk is not None and _is_short(hunk, header)
        if problem is not None:
            malformed.append(problem)
        elif hunk is not None:
            hunks.append(hunk)
    if not hunks and not malformed:
        malformed.append(Malformed(line=begin + 1, reason="the diff has no hunk", path=path))
    return FileDiff(() if malformed else tuple(hunks), tuple(malformed), position, is_short)


def begins_git_header(lines: Sequence[str], position: int) -> bool:
    """Return True if git's header of a file starts here; some models omit its first line."""
    line = lines[position]
    if line.startswith("diff --git ") or _BINARY.match(line):
        return True
    match = _GIT_HEADER.match(line)
    follows = _GIT_HEADER.match(lines[position + 1]) if position + 1 < len(lines) else None
    return match is not None and (follows is not None or match.group(2)[:3] in {"100", "120", "160"})


def read_git_diff(lines: Sequence[str], position: int) -> FileDiff:
    """Parse one file's diff starting at git's header. The hunks that change the file itself come first."""
    begin = position
    names = _GIT_NAMES.match(lines[position])
    position += lines[position].startswith("diff --git ")
    headers: dict[str, str] = {}
    while position < len(lines) and (match := _GIT_HEADER.match(lines[position])):
        headers[match.group(1)] = match.group(2)
        position += 1
    path = _git_path(headers, names)
    has_hunks = position < len(lines) and is_file_header(lines, position)
    if path is None and has_hunks:
        old, new = _without_prefixes(_name(lines[position][4:]), _name(lines[position + 1][4:]))
        path = new if old == "/dev/null" else old
    reason = _not_done(headers, path)
    own = _of_the_file(headers, path, has_hunks=has_hunks) if path and not reason else []
    hunks: tuple[Hunk, ...] = ()
    malformed: tuple[Malformed, ...] = ()
    is_short = False
    if has_hunks:
        diff = read_file_diff(lines, position, is_git="rename from" in headers)
        hunks, malformed, position, is_short = diff.hunks, diff.malformed, diff.end, diff.is_short
        path = hunks[0].path if hunks else path
        if hunks and hunks[0].kind == "create":
            hunks = tuple(replace(hunk, executable=_MODES.get(headers.get("new file mode", ""))) for hunk in hunks)
        if hunks and "rename from" in headers and path != _name(headers["rename from"]):
            reason = "the headers of the diff disagree about the names of the file"
    elif position < len(lines) and _BINARY.match(lines[position]):
        reason = reason or "a patch of a binary file is not read"
        position = _after_binary(lines, position)
    elif not own:
        reason = reason or "the diff has no hunk"
    if reason:
        malformed = (*malformed, Malformed(line=begin + 1, reason=reason, path=path))
    done = () if malformed else (*own, *hunks)
    return FileDiff(done, malformed, max(position, begin + 1), is_short)


def _git_path(headers: Mapping[str, str], names: re.Match[str] | None) -> str | None:
    """The file that git's header names: the old name if it is renamed."""
    for kind in ("rename from", "copy to"):
        if kind in headers:
            return _name(headers[kind])
    if names is None:
        return None
    return _name(f'"{names.group(2)}"') if names.group(0).endswith('"') else names.group(2)


def _not_done(headers: Mapping[str, str], path: str | None) -> str:
    """The reason why the change in git's header is not made; empty if it is made."""
    if "copy from" in headers or "copy to" in headers:
        return "the diff copies a file"
    if ("rename from" in headers) != ("rename to" in headers):
        return "the diff renames a file, but names only one of its two names"
    for kind in ("new file mode", "new mode", "old mode"):
        if headers.get(kind, "100644") not in _MODES:
            return f"the diff asks for a file of mode {headers[kind]}; only plain files are written"
    if not path and ("new mode" in headers or "old mode" in headers):
        return "the diff changes the mode of a file that it does not name"
    return ""


def _of_the_file(headers: Mapping[str, str], path: str, *, has_hunks: bool) -> list[Hunk]:
    """Operations of git's header that are not in the hunks: on the file itself, and on an empty file."""
    own = []
    if "new file mode" in headers and not has_hunks:
        executable = _MODES[headers["new file mode"]]
        own.append(Hunk(path=path, kind="create", source="diff", executable=executable))
    if "deleted file mode" in headers and not has_hunks:
        own.append(Hunk(path=path, kind="delete", source="diff"))
    if "rename to" in headers:
        own.append(Hunk(path=path, kind="move", source="diff", to=_name(headers["rename to"])))
    if "new mode" in headers:
        own.append(Hunk(path=path, kind="mode", source="diff", executable=_MODES[headers["new mode"]]))
    return own


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
    last: str = ""
    ends_old: bool = False
    ends_new: bool = False

    def take(self, line: str, *, complete: bool) -> bool:
        """Add one line; False if it cannot belong to a hunk."""
        if _NO_NEWLINE.match(line):
            self.ends_old |= self.last != "+"
            self.ends_new |= self.last != "-"
            return True
        self.last = line[:1]
        if line.startswith(("+", "-")):
            (self.new if line[0] == "+" else self.old).append(line[1:])
            self.changed = True
        elif line.startswith(" ") or (not line and not complete):
            # An empty line is a blank context line that lost its single space.
            self.old.append(line[1:])
            self.new.append(line[1:])
        else:
            return False
        return True

    @property
    def final_newline(self) -> bool | None:
        """Whether the file's last line gains or loses its newline; None: it stays as it is."""
        return None if self.ends_old == self.ends_new else self.ends_old

    def drop_unclaimed_blanks(self, old_count: int | None) -> None:
        """Remove blank lines between the hunk and the next fence or prose: they are not its context."""
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
        final_newline=False if kind == "create" and body.ends_new else body.final_newline,
    )


def _ends_hunk(lines: Sequence[str], position: int, *, complete: bool) -> bool:
    """Return True if a new hunk, file or fence starts here. `--- x` may also be a removed line `-- x`."""
    line = lines[position]
    if _HUNK.match(line) or line.startswith(("```", "~~~", *_GIT_LINES)):
        return True
    return is_file_header(lines, position) and (complete or _hunk_follows(lines, position + 2))


def _is_short(hunk: Hunk, header: re.Match[str]) -> bool:
    old, new = _count(header.group(1), header.group(2)), _count(header.group(3), header.group(4))
    return (old is not None and len(hunk.search) < old) or (new is not None and len(hunk.replace) < new)


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

"""Read the edits out of a model's answer: search/replace blocks and unified diffs, in any mixture.

Whatever looks like an edit and cannot be read with certainty is reported, never guessed at.
"""

import re
from dataclasses import dataclass, field

from app.code.edits.lines import contents
from app.code.edits.types import Answer, Hunk, Malformed
from app.code.edits.unified import is_file_header, read_file_diff

_SEARCH = re.compile(r"^<{5,9}\s*(?:SEARCH|ORIGINAL)\b")
_DIVIDER = re.compile(r"^={5,9}\s*$")
_REPLACE = re.compile(r"^>{5,9}\s*(?:REPLACE|UPDATED)\b")
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})(.*)$")
_ELISION = re.compile(r"^\s*(?:#|//|--|/\*|<!--)?\s*(?:\.\.\.|…)\s*(?:\*/|-->)?\s*$")
# Decoration that answers put around a file name: **name**, `name`, # name, name:
_DECORATION = re.compile(r"^[\s#>*`\"'_-]+|[\s*`\"':_]+$")
# An answer larger than this is not read at all: it was cut, or it is hostile.
MAX_ANSWER_BYTES = 4 << 20


@dataclass
class _Reader:
    lines: list[str]
    position: int = 0
    hunks: list[Hunk] = field(default_factory=list)
    malformed: list[Malformed] = field(default_factory=list)
    last_path: str | None = None


def parse_answer(text: str, project_paths: frozenset[str] = frozenset()) -> Answer:
    """Every edit of `text`, in order. `project_paths` settles file names written with decoration."""
    if len(text) > MAX_ANSWER_BYTES:
        reason = f"the answer has {len(text)} characters, more than {MAX_ANSWER_BYTES}"
        return Answer(hunks=(), malformed=(Malformed(line=1, reason=reason),))
    reader = _Reader(contents(text))
    while reader.position < len(reader.lines):
        line = reader.lines[reader.position]
        if _SEARCH.match(line):
            _read_block(reader, project_paths)
        elif is_file_header(reader.lines, reader.position):
            diff = read_file_diff(reader.lines, reader.position)
            reader.hunks += diff.hunks
            reader.malformed += diff.malformed
            reader.position = diff.end
        elif _REPLACE.match(line):
            _fail(reader, reader.position, "a block ends here that never began")
            reader.position += 1
        else:
            reader.position += 1
    return Answer(hunks=tuple(reader.hunks), malformed=tuple(reader.malformed))


def _read_block(reader: _Reader, project_paths: frozenset[str]) -> None:
    begin = reader.position
    path = _path_before(reader, begin, project_paths)
    search: list[str] = []
    replace: list[str] = []
    part = search
    position = begin + 1
    while position < len(reader.lines):
        line = reader.lines[position]
        if _SEARCH.match(line):
            _fail(reader, begin, "the block has no end before the next one begins", path)
            reader.position = position
            return
        if _DIVIDER.match(line):
            if part is replace:
                _skip_block(reader, position)
                _fail(reader, begin, "the block has more than one divider, so its halves are not certain", path)
                return
            part = replace
        elif _REPLACE.match(line):
            break
        else:
            part.append(line)
        position += 1
    reader.position = position + 1
    if position >= len(reader.lines):
        _fail(reader, begin, "the answer ends inside the block", path)
    elif part is search:
        _fail(reader, begin, "the block has no divider", path)
    elif path is None:
        _fail(reader, begin, "no file is named before the block")
    elif any(_ELISION.match(line) for line in search):
        _fail(reader, begin, "the text to find leaves lines out with '...'", path)
    else:
        reader.last_path = path
        empty = not any(line.strip() for line in search)
        reader.hunks.append(
            Hunk(
                path=path,
                kind="create" if empty else "change",
                search=() if empty else tuple(search),
                replace=tuple(replace),
                source="block",
            )
        )


def _skip_block(reader: _Reader, position: int) -> None:
    while position < len(reader.lines) and not _REPLACE.match(reader.lines[position]):
        if _SEARCH.match(reader.lines[position]):
            reader.position = position
            return
        position += 1
    reader.position = position + 1


def _path_before(reader: _Reader, begin: int, project_paths: frozenset[str]) -> str | None:
    """The file named on one of the three lines before a block, else that of the block before."""
    for back in range(1, 4):
        number = begin - back
        if number < 0 or _REPLACE.match(reader.lines[number]):
            break
        line = reader.lines[number].strip()
        fence = _FENCE.match(reader.lines[number])
        if fence:
            # ```python src/a.py  or  ```src/a.py
            words = fence.group(2).split()
            line = words[-1] if words and _looks_like_path(words[-1], project_paths) else ""
        if not line:
            continue
        if line in project_paths:
            return line
        bare = _DECORATION.sub("", line)
        for candidate in (bare, bare.removeprefix("File: "), bare.removeprefix("file: ")):
            if candidate in project_paths or _looks_like_path(candidate, project_paths):
                return candidate
        break
    return reader.last_path


def _looks_like_path(text: str, project_paths: frozenset[str]) -> bool:
    """One word with a dot or a slash in it; whether it may be touched is decided by the workspace."""
    if text in project_paths:
        return True
    return bool(text) and not any(char.isspace() for char in text) and ("/" in text or "." in text.strip("."))


def _fail(reader: _Reader, line: int, reason: str, path: str | None = None) -> None:
    reader.malformed.append(Malformed(line=line + 1, reason=reason, path=path))

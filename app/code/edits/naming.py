"""Find the file name in the lines before an edit block.

An uncertain name counts as none, so that no wrong file is written. Underscores are never treated as decoration:
`__init__.py` and `_config.yml` are names.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

FENCE: Final = re.compile(r"^\s*+(`{3,}+|~{3,}+)\s*+([^`]*+)$")
# Prefixes of a name on its line: quotes, headings, list items, code comments.
_PREFIX: Final = re.compile(r"^(?:>|(?:#{1,6}|[-*+•]|\d{1,3}[.)]|//+|--|;+|%+|/\*+|<!--)(?=\s))\s*")
_SUFFIX: Final = re.compile(r"\s+(?:\*/|-->|#+)$")
_ANNOTATION: Final = re.compile(
    r"\s+\((?:new|created?|modified|updated?|changed?|existing|edit(?:ed)?|lines?)\b[^()]*\)$", re.IGNORECASE
)
_LABEL: Final = re.compile(
    r"^(?:\*\*)?(?:(?:new|existing|updated?|modified|create|edit|update|modify|in) )?"
    r"(?:file ?name|file ?path|file|path|create|edit|update|modify)(?:\*\*)?\s*:(?:\*\*)?\s*(\S.*)$",
    re.IGNORECASE,
)
_LINK: Final = re.compile(r"^\[([^\[\]]+)\]\([^()]*\)$")
_TAGGED: Final = re.compile(r"^<(path|file|file_?path|file_?name)>\s*(.*?)\s*</\1>$")
_TAG: Final = re.compile(r"^</?[A-Za-z_]+>$")
_PAIRS: Final = (
    ("**", "**", "emphasis"), ("*", "*", "emphasis"), ("`", "`", "code"),
    ('"', '"', "quotes"), ("'", "'", "quotes"), ("\u201c", "\u201d", "quotes"),
)  # fmt: skip
_CERTAIN: Final = frozenset({"code", "quotes"})
_INFO_NAME: Final = re.compile(r"\b(?:title|file|file_?name|path)\s*=\s*(?:\"([^\"]+)\"|'([^']+)'|([^\s}]+))")
_INFO_AFTER_LANGUAGE: Final = re.compile(r"^[\w+#.-]*:(\S.*)$")
_SPAN: Final = re.compile(r"`([^`]+)`")
_PLAIN: Final = re.compile(r"[\w@+#~%&=-]+(?:\([\w -]+\))?")
_EXTENSION: Final = re.compile(r"[^\s/]*\.[A-Za-z0-9_+-]{1,12}$")
# Characters that no name contains, except as complete pairs around it; Windows names cannot contain them either.
_NO_NAME: Final = re.compile(r'[*?"<>|`:]|\(\)$')
_CODE_SUFFIXES: Final = """
bat c cc cfg clj conf cpp cs css csv cxx dart env ex exs go gradle graphql h hpp hs htm html ini ipynb java jl
js json jsx kt kts less lock lua m md mjs ml mm nix php pl proto ps1 py pyi pyx r rb rs rst sass scala scss sh
sql svelte svg swift tex toml ts tsx txt vue xml yaml yml zig
"""
_FILE_WORD: Final = re.compile(
    rf"(?:[\w.@+#()\[\]~$%-]+[/\\])*[\w.@+#()\[\]~$%-]*\.(?:{'|'.join(_CODE_SUFFIXES.split())})"
)
# Files without an extension that have well-known names.
_WELL_KNOWN_NAMES: Final = """
AUTHORS BUILD CHANGELOG CHANGES CODEOWNERS CONTRIBUTING CONTRIBUTORS COPYING COPYRIGHT INSTALL Kbuild Kconfig
LICENCE LICENSE MAINTAINERS MANIFEST NEWS NOTICE OWNERS PATENTS README SConscript SConstruct SECURITY THANKS
VERSION WORKSPACE configure crontab gradlew mvnw wscript
"""
_WELL_KNOWN: Final = frozenset(_WELL_KNOWN_NAMES.split())
_SOME_FILE: Final = re.compile(r"[A-Za-z]{2,}file")
# Words of a sentence that introduces a block. A sentence of only these words and one name names the file.
_PROSE_WORDS: Final = """
a about above add added adding adds after again all also and another any are as at be because before below
block but by can change changed changes changing code content contents create created creates creating do does
done each edit edited editing edits existing file files finally first fix fixed fixes following follows for
from has have here here's i i'll i'm if in inside instead into is it its let let's like look looks make
makes me modify modified must need needs new next now of on once one only open or original our part path
please put rather same second section see should show shows so step still that that's the their them then
there these third this those to too under update updated updates updating use used uses using was we we'll
were when where which while will with within would write you your
"""
_PROSE: Final = frozenset(_PROSE_WORDS.split())
# Words that start a sentence with a file name, if neither a colon nor quotation marks show it.
_LEADS: Final = frozenset(
    {"add", "also", "and", "change", "create", "edit", "finally", "first", "in", "modify", "new", "next", "now"}
    | {"second", "step", "then", "update"}
)
# Maximum lines of explanation between the name and the block.
_LINES_BACK: Final = 3
_LONG_SENTENCE: Final = 5
_SENTENCE: Final = 3
# A longer line is not searched for a name: some patterns take time quadratic in its length.
_LINE_CHARS: Final = 2000


@dataclass(frozen=True, kw_only=True)
class Naming:
    """`path` is None if no file is named. `doubt` is a line that may name one; then no other name may be used."""

    path: str | None = None
    doubt: str = ""


def name_before(
    lines: Sequence[str], before: Sequence[int], fence_start: int | None, rest: str, paths: frozenset[str]
) -> Naming:
    """Find the file that is named before a block.

    before: indices of the lines since the previous block, without closed code. fence_start: line of the fence
    around the block. rest: text after the block's first mark. known: the project's files, which resolve doubts.
    """
    candidates: list[str] = []
    if rest.strip(" :>"):
        behind = name_on(rest.strip(" :>"), paths)
        if behind.path is None:
            return Naming(doubt=rest.strip())
        candidates.append(behind.path)
    seen = 0
    for number in reversed(before):
        if number == fence_start:
            match = FENCE.match(lines[number])
            info = name_in_info(match.group(2) if match else "", paths)
            candidates += [info] if info else []
            continue
        if not lines[number].strip() or _TAG.match(lines[number].strip()):
            continue
        seen += 1
        naming = name_on(lines[number], paths)
        if naming.path is not None:
            candidates.append(naming.path)
        elif naming.doubt and not candidates:
            return naming
        if naming.path is not None or naming.doubt or seen == _LINES_BACK:
            break
    return _agreed(candidates)


def _agreed(candidates: Sequence[str]) -> Naming:
    """One name from several; a short form of a longer name is the same file."""
    if not candidates:
        return Naming()
    longest = max(candidates, key=len)
    if all(path == longest or longest.endswith(f"/{path.removeprefix('./')}") for path in candidates):
        return Naming(path=longest)
    return Naming(doubt=" / ".join(dict.fromkeys(candidates)))


def name_on(line: str, paths: frozenset[str]) -> Naming:
    """The file that a line names; empty if the line is a sentence without a name."""
    text = line.strip()
    if text in paths or len(text) > _LINE_CHARS:
        return Naming(path=text if text in paths else None)
    tagged = _TAGGED.match(text)
    if tagged:
        return Naming(path=tagged.group(2)) if tagged.group(2) else Naming(doubt=text)
    bare = _without_prefix(text)
    marks = {"prefix"} if bare != text else set()
    while bare not in paths:
        stripped, mark = _unwrapped(bare)
        if stripped == bare:
            break
        bare = stripped
        marks.add(mark)
    if bare in paths:
        return Naming(path=bare)
    words = bare.split()
    if not any(char.isalnum() for char in bare):
        return Naming()
    return _one_word(words[0], marks, text) if len(words) == 1 else _several_words(bare, marks, text, paths)


def _without_prefix(text: str) -> str:
    bare = text
    while match := _PREFIX.match(bare):
        bare = bare[match.end() :]
    return _SUFFIX.sub("", bare) if bare != text else bare


def _unwrapped(text: str) -> tuple[str, str]:
    """The text without one layer of decoration, and the kind of that layer."""
    link = _LINK.match(text)
    if link:
        return link.group(1), "emphasis"
    if _ANNOTATION.search(text):
        return _ANNOTATION.sub("", text), "annotation"
    if text.endswith(":") and len(text) > 1:
        return text[:-1].rstrip(), "colon"
    for begin, end, mark in _PAIRS:
        inner = text[len(begin) : -len(end)]
        if text.startswith(begin) and text.endswith(end) and inner.strip() and not {begin, end} & {*_marks(inner)}:
            return inner.strip(), mark
    label = _LABEL.match(text)
    return (label.group(1), "label") if label else (text, "")


def _marks(text: str) -> Iterator[str]:
    return (mark for begin, end, _ in _PAIRS for mark in (begin, end) if mark in text)


def _one_word(word: str, marks: set[str], line: str) -> Naming:
    if _is_path(word) or is_well_known(word) or (marks & {*_CERTAIN, "label"} and _PLAIN.fullmatch(word)):
        return Naming(path=word)
    if word.strip(".,;:!?").lower() in _PROSE or word[-1] in ".!?":
        return Naming()
    if not marks and _PLAIN.fullmatch(word):
        return Naming(path=word)
    return Naming(doubt=line)


def _several_words(text: str, marks: set[str], line: str, files: frozenset[str]) -> Naming:
    if marks & _CERTAIN:
        return Naming(path=text) if _is_spaced_path(text) else Naming(doubt=line)
    words = [word.strip(".,;:!?*_()\u2013\u2014-").lower() for word in _SPAN.sub(" ", text).split()]
    paths = mentions(text, files)
    prose = [word for word in words if word in _PROSE]
    if not paths:
        count = len(text.split())
        is_sentence = count >= _LONG_SENTENCE or (count >= _SENTENCE and prose)
        return Naming() if is_sentence or (prose and line.endswith((":", ".", "!"))) else Naming(doubt=line)
    others = [w for w in words if w and not w.isdecimal() and w not in {name.lower() for name in paths}]
    plain = "colon" in marks or paths[0] in files or f"`{paths[0]}`" in text or words[0] in _LEADS
    if len(paths) == 1 and plain and prose and all(word in _PROSE for word in others):
        return Naming(path=paths[0])
    one = len(paths) <= 1 and not files.intersection(paths)  # `a.py b.py` are two files; a known name is a file
    if one and not prose and not set(",;!?") & set(text) and _is_spaced_path(text):
        return Naming(path=text)
    return Naming(doubt=line)


def mentions(text: str, files: frozenset[str]) -> list[str]:
    """The files that a sentence mentions."""
    text = text[:_LINE_CHARS]
    spans = [span.strip() for span in _SPAN.findall(text)]
    paths = [s for s in spans if s in files or is_well_known(s) or (_is_spaced_path(s) and not _NO_NAME.search(s))]
    paths = [s for s in paths if s in files or is_well_known(s) or _FILE_WORD.fullmatch(s.rpartition(" ")[2])]
    for word in _SPAN.sub(" ", text).split():
        bare = word.strip("*\"'(),;:!?<>\u201c\u201d").removesuffix(".")
        if bare in files or is_well_known(bare) or (_FILE_WORD.fullmatch(bare) and not _NO_NAME.search(bare)):
            paths.append(bare)
    return list(dict.fromkeys(paths))


def name_in_info(info: str, files: frozenset[str]) -> str | None:
    """The file in a fence's info string: `python src/a.py`, `python:src/a.py`, `src/a.py`, `title="a.py"`."""
    info = info.strip()
    match = _INFO_NAME.search(info)
    if match:
        return next(group for group in match.groups() if group)
    after = _INFO_AFTER_LANGUAGE.match(info)
    language, _, tail = info.partition(" ")
    tail = (after.group(1) if after else tail).strip().strip("`\"'")
    if not info:
        return None
    if not tail:  # one word is a language (`makefile`, `vb.net`) unless it is clearly a path
        is_file = _is_path(language) and ("/" in language or language in files or _FILE_WORD.fullmatch(language))
        return language if is_file else None
    if tail in files or is_well_known(tail):
        return tail
    one = len(tail.split()) == 1
    return tail if tail[0] != "{" and (_is_path(tail) if one else _is_spaced_path(tail)) else None


def is_well_known(word: str) -> bool:
    """Return True for a well-known file name without an extension, such as Makefile or LICENSE."""
    leaf = word.rpartition("/")[2]
    return leaf in _WELL_KNOWN or (_SOME_FILE.fullmatch(leaf) is not None and leaf.lower() != "profile")


def _is_path(word: str) -> bool:
    """Return True for one word with a dot or a slash; the workspace decides whether it may be written."""
    if _NO_NAME.search(word) or word[-1] in ".,;!" or not any(char.isalpha() for char in word):
        return False
    return "/" in word or "\\" in word or "." in word.strip(".") or re.match(r"\.\w", word) is not None


def _is_spaced_path(text: str) -> bool:
    last = text.rpartition(" ")[2]
    if _NO_NAME.search(text) or len(text.split()) > 2 * _LONG_SENTENCE:
        return False
    return _EXTENSION.fullmatch(last.rpartition("/")[2]) is not None or ("/" in text and is_well_known(last))

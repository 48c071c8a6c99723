"""Fill-in-the-middle prompts: the text before and after a gap, in the order and markers of the model's training.

A prompt is a list of parts. Only the markers are parsed as special tokens. Text from users and files is not, so
that source code with such a marker cannot end its own section.
"""

from typing import NamedTuple

import msgspec

from engine.chat.fim_families import FimFamily
from engine.core.types import ModelFacts


class FimPart(NamedTuple):
    """A part of the prompt; `special` text is parsed for special tokens."""

    text: str
    special: bool


class FimFile(msgspec.Struct, frozen=True):
    """Another file (or part of one) as context."""

    path: str
    text: str


class FimGap(msgspec.Struct, frozen=True, kw_only=True):
    """A gap to fill. `extra` files come in the given order, the most relevant last, next to the gap."""

    prefix: str
    suffix: str
    path: str | None = None
    repository: str | None = None
    extra: tuple[FimFile, ...] = ()


def fim_parts(facts: ModelFacts, family: FimFamily, gap: FimGap) -> list[FimPart]:
    """The prompt for a gap. The tokenizer adds the beginning-of-text token."""
    prefix_mark = FimPart(family.prefix or facts.fim.get("pre", ""), True)
    suffix_mark = FimPart(family.suffix or facts.fim.get("suf", ""), True)
    middle_mark = FimPart(family.middle or facts.fim.get("mid", ""), True)
    before, above = _context(family, gap)
    prefix = FimPart(above + gap.prefix, False)
    suffix = FimPart(gap.suffix, False)
    if family.order == "suffix first":
        parts = [*before, suffix_mark, suffix, prefix_mark, prefix]
    else:
        parts = [*before, prefix_mark, prefix, suffix_mark, suffix]
    return [part for part in (*parts, middle_mark) if part.text]


def fim_stops(facts: ModelFacts, family: FimFamily) -> tuple[str, ...]:
    """Markers that end a completion at any position, including the model's own."""
    own = (mark for mark in facts.fim.values() if mark.strip())
    return tuple(dict.fromkeys((*family.stops, *own)))


def _context(family: FimFamily, gap: FimGap) -> tuple[list[FimPart], str]:
    """(parts before everything, text above the prefix) for the other files and the gap's own path."""
    parts: list[FimPart] = []
    if family.context == "repository" and (gap.extra or gap.path):
        if family.repository:
            parts += [FimPart(family.repository, True), FimPart((gap.repository or "project") + "\n", False)]
        for file in gap.extra:
            parts += [FimPart(family.file, True), FimPart(f"{file.path}\n{file.text}\n", False)]
        parts += [FimPart(family.file, True), FimPart(f"{gap.path or 'file'}\n", False)]
    elif family.context == "separated" and gap.extra:
        for file in gap.extra:
            parts += [FimPart(f"{file.path}\n{file.text}", False), FimPart(family.file, True)]
        parts.append(FimPart(f"{gap.path or 'file'}\n", False))
    elif family.context == "headed" and gap.extra:
        heads = [f"{family.heading.format(path=f.path)}{f.text}\n\n" for f in gap.extra]
        return [], "".join(heads) + (family.heading.format(path=gap.path) if gap.path else "")
    elif family.context == "commented" and gap.extra:
        sign = comment_sign(gap.path or gap.extra[0].path)
        lines = [line for f in gap.extra for line in (f"Path: {f.path}", *f.text.rstrip("\n").split("\n"))]
        return [], "".join(f"{sign} {line}".rstrip() + "\n" for line in lines) + "\n"
    return parts, ""


_SLASHES = "c cc cpp cs cu cxx dart go h hh hpp java js jsx kt m php rs scala swift ts tsx zig"
_DASHES = "ada elm hs lua sql vhd"


def comment_sign(path: str) -> str:
    """Start of a line comment in the language of a file."""
    suffix = path.rsplit(".", 1)[-1].lower()
    return "//" if suffix in _SLASHES.split() else "--" if suffix in _DASHES.split() else "#"


def shortened(gap: FimGap, *, keep_prefix: int, keep_suffix: int, keep_extra: int) -> FimGap:
    """The gap with at most this many characters of each side next to it, cut at line boundaries.

    The start of the prefix moves in steps of an eighth to a quarter of its size, so that it stays in place while
    the user types and a cached prompt remains valid. The last of the other files stay; the first that does not fit
    is cut.
    """
    prefix, suffix = gap.prefix, gap.suffix
    if len(prefix) > keep_prefix:
        step = 1 << max((keep_prefix // 4).bit_length() - 1, 0)
        cut = -(-(len(prefix) - keep_prefix) // step) * step
        border = prefix.find("\n", cut)
        prefix = prefix[border + 1 if 0 <= border < len(prefix) - 1 else cut :]
    if len(suffix) > keep_suffix:
        border = suffix.rfind("\n", 0, keep_suffix)
        suffix = suffix[: border + 1 if border > 0 else keep_suffix]
    extra: list[FimFile] = []
    for file in reversed(gap.extra):
        keep_extra -= len(file.path)
        if keep_extra <= 0:
            break
        text = file.text if len(file.text) <= keep_extra else file.text[:keep_extra].rpartition("\n")[0]
        keep_extra -= len(text)
        if text:
            extra.insert(0, FimFile(file.path, text))
    return msgspec.structs.replace(gap, prefix=prefix, suffix=suffix, extra=tuple(extra))

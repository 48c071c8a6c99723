"""Markdown text to top-level blocks, with raw HTML kept as text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

# Formulas: \\( \\) and \\[ \\] as LaTeX has them, $$ $$, and $ $ where it cannot be money: no space inside the
# signs and no digit behind. Source of the last: pandoc's tex_math_dollars.
_MATH = (
    (re.compile(r"\\\[(.+?)\\\]", re.DOTALL), True),
    (re.compile(r"\\\((.+?)\\\)", re.DOTALL), False),
    (re.compile(r"\$\$(.+?)\$\$", re.DOTALL), True),
    (re.compile(r"\$(?![\s$])((?:\\.|[^$\\\n])+?)(?<![\s\\])\$(?!\d)"), False),
)


def _math(state: "StateInline", silent: bool) -> bool:
    """An inline rule of markdown-it."""
    if state.src[state.pos] not in "\\$":
        return False
    for pattern, display in _MATH:
        found = pattern.match(state.src, state.pos)
        if found is None:
            continue
        if not silent:
            token = state.push("math", "", 0)
            token.content, token.markup, token.block = found[1].strip(), found[0], display
        state.pos = found.end()
        return True
    return False


@cache
def parser() -> "MarkdownIt":
    """The parser; made when there is a first text, which is not before the window is shown."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 - see above

    made = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])
    made.inline.ruler.before("escape", "math", _math)
    return made


_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})[^\n]*\n?")
_URL = re.compile(r"https?://[^\s<>\"'`\u0000-\u001f]+")
_AFTER_URL = ".,;:!?)]}*_"


@dataclass(frozen=True)
class Block:
    """One top-level block: its tokens, and the line of the parsed text where it starts."""

    tokens: "tuple[Token, ...]"
    line: int


def blocks(text: str) -> list[Block]:
    """The top-level blocks of a text, in order."""
    found: list[Block] = []
    current: list[Token] = []
    start = 0
    for token in parser().parse(text):
        if not current and token.map:
            start = token.map[0]
        current.append(token)
        if token.level == 0 and token.nesting <= 0:
            found.append(Block(tuple(current), start))
            current = []
    return found


def open_fence(text: str) -> tuple[str, int] | None:
    """If the text starts with a code fence: its marker (such as "```") and where the code begins."""
    match = _FENCE.match(text)
    if match is None or not match.group().endswith("\n"):
        return None
    return match.group(1), match.end()


def closing_fence(code: str, marker: str) -> re.Match[str] | None:
    """The line that closes a fence opened by `marker`, or None while it is open."""
    pattern = rf"(?m)^ {{0,3}}{re.escape(marker[0])}{{{len(marker)},}}[ \t]*$\n?"
    return re.search(pattern, code)


def split_urls(text: str) -> Iterator[tuple[str, str]]:
    """Pieces of plain text, each with the address it is (or an empty string)."""
    position = 0
    for match in _URL.finditer(text):
        address = match.group().rstrip(_AFTER_URL)
        if address.count("(") > address.count(")") and match.group()[len(address) :].startswith(")"):
            address += ")"  # an address may itself hold a pair of brackets
        if match.start() > position:
            yield text[position : match.start()], ""
        yield address, address
        position = match.start() + len(address)
    if position < len(text):
        yield text[position:], ""

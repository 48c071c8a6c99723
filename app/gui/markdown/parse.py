"""Parses Markdown into top-level blocks. Raw HTML stays text."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from app.latex_child import LONGEST

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

# Formula delimiters: \\( \\) and \\[ \\] as in LaTeX, $$ $$, and $ $ unless it looks like money or a shell
# variable.
_DISPLAY, _INLINE, _DOLLARS = (r"\[", r"\]"), (r"\(", r"\)"), ("$$", "$$")
# No space inside the delimiters. Source: pandoc's tex_math_dollars.
_DOLLAR = re.compile(r"\$(?![\s$])((?:\\.|[^$\\\n])+?)(?<![\s\\])\$")
_LETTER = re.compile(r"[A-Za-z0-9]")
_ENDING = re.compile(r"(?:th|st|nd|rd|s|te[nrs]?|fold|ary)(?![A-Za-z0-9_])")  # the $n$th, der $n$te
_SIGN = re.compile(r"[\\^_={}<>+*]")
_WORD = re.compile(r"(?<![A-Za-z])[A-Za-z]{2,}")
_FUNCTIONS = frozenset({"mod", "sin", "cos", "tan", "log", "ln", "exp", "min", "max", "lim", "gcd", "lcm", "det"})


def _is_inline_formula(content: str, before: str, after: str) -> bool:
    """Whether the text between two dollar signs is a formula. `before`, `after`: the adjacent characters."""
    if _LETTER.match(before) or after[:1].isdigit() or after[:1] == "{":
        return False  # US$, 10$, A$AP; $5 and $6; ${HOME}/${USER}
    if _LETTER.match(after) and not (_ENDING.match(after) and content[-1] not in "/:,;.-"):
        return False  # $HOME/bin:$PATH
    if content[0] == after[:1] == "(":
        return False  # $(pwd)/$(date)
    if _SIGN.search(content):
        return True
    words = [word for word in _WORD.findall(content) if word not in _FUNCTIONS]
    return len(words) < (1 if content[0].isdigit() else 2)  # $5 bill, a $10


def _is_between_process_numbers(content: str) -> bool:
    """Whether the text lies between two shell process ids, as in kill $$ || echo $$."""
    plain = content[0].isspace() and "\n" not in content and not _SIGN.search(content)
    return plain and bool(_WORD.search(content))


def _between(state: "StateInline", signs: tuple[str, str]) -> str | None:
    """The formula at the current position without its delimiters, or None."""
    if not state.src.startswith(signs[0], state.pos):
        return None
    start = state.pos + len(signs[0])
    # Limit the search: searching the whole text for each unclosed delimiter took 4 s for 40,000 characters.
    end = state.src.find(signs[1], start + 1, min(state.posMax, start + LONGEST + len(signs[1])))
    return state.src[start:end] if end >= 0 else None


def _formula(state: "StateInline") -> tuple[str, int, bool] | None:
    """The formula at the current position, its length with delimiters, and whether it is a display formula."""
    for signs, display in ((_DISPLAY, True), (_INLINE, False), (_DOLLARS, True)):
        content = _between(state, signs)
        if content is None:
            continue
        if signs is _DOLLARS and _is_between_process_numbers(content):
            continue
        return content, len(content) + 2 * len(signs[0]), display
    match = _DOLLAR.match(state.src, state.pos, state.posMax)
    if match is None:
        return None
    before, after = state.src[max(state.pos - 1, 0) : state.pos], state.src[match.end() : match.end() + 6]
    return (match[1], len(match[0]), False) if _is_inline_formula(match[1], before, after) else None


def _math(state: "StateInline", silent: bool) -> bool:
    """Inline rule for markdown-it."""
    if state.src[state.pos] not in "\\$":
        return False
    formula = _formula(state)
    if formula is None:
        return False
    content, length, display = formula
    if not silent:
        token = state.push("math", "", 0)
        token.content, token.block = content.strip(), display
        token.markup = state.src[state.pos : state.pos + length]
    state.pos += length
    return True


@cache
def parser() -> "MarkdownIt":
    """The parser, created for the first text, after the window is shown."""
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import table

    markdown = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["strikethrough"])
    # Not first, as in markdown-it: a line that opens code, a quote or a list is not a table head.
    markdown.block.ruler.before("lheading", "late_table", table, {"alt": ["paragraph", "reference"]})
    markdown.inline.ruler.before("escape", "math", _math)
    return markdown


_FENCE = re.compile(r"(`{3,}|~{3,})[^\n]*\n?")
# Qt's word breaking is quadratic in the word length. Measured: 80,000 letters took 1.5 s, now 0.1 s.
BREAK = "\u200b"
_LONGEST_WORD = 4096
_NO_SPACES = re.compile(r"\S+")
_URL = re.compile(r"https?://[^\s<>\"'`\u0000-\u001f]+")
_AFTER_URL = ".,;:!?)]}*_"


_RULES = {"left": ":--", "right": "--:", "center": ":-:"}
_FORMULA = re.compile(r"[=+@-]")
_NUMBER = re.compile(r"[+-]?[\d.,\s%]*")
_TASKS = {"[ ] ": "\u25a1 ", "[x] ": "\u2713 "}  # signs that the bundled fonts have
BOXES = frozenset(_TASKS.values())
References = dict[str, dict[str, Any]]  # by label, in markdown-it's format


@dataclass(frozen=True)
class Block:
    """One top-level block: its tokens, and its first line in the parsed text."""

    tokens: "tuple[Token, ...]"
    line: int


def blocks(text: str, references: References | None = None) -> list[Block]:
    """The top-level blocks of a text, in order. Adds link reference definitions to `references`."""
    result: list[Block] = []
    current: list[Token] = []
    start = 0
    tokens = parser().parse(text, {"references": {} if references is None else references})
    _mark_tasks(tokens)
    for token in tokens:
        if not current and token.map:
            start = token.map[0]
        current.append(token)
        if token.level == 0 and token.nesting <= 0:
            result.append(Block(tuple(current), start))
            current = []
    return result


def _mark_tasks(tokens: "list[Token]") -> None:
    """Show "[ ]" and "[x]" at the beginning of a list item as a box, as GitHub does. The item has it as `info`."""
    for item, paragraph, inline in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if (item.type, paragraph.type) != ("list_item_open", "paragraph_open") or not inline.children:
            continue
        first = inline.children[0]
        box = _TASKS.get(first.content[:4].lower())
        if first.type == "text" and box:
            item.info = box
            first.content = box + first.content[4:]


def table_source(rows: "Sequence[Sequence[tuple[str, Token]]]") -> tuple[str, str]:
    """A table of (alignment, cell) as Markdown and as tab-separated values."""
    lines = [_line(cell.content.replace("|", "\\|") for _, cell in row) for row in rows]
    lines.insert(1, _line(_RULES.get(alignment, "---") for alignment, _ in rows[0]))
    cells = ["\t".join(_value(cell) for _, cell in row) for row in rows]
    return "\n".join(lines) + "\n", "\n".join(cells) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _value(cell: "Token") -> str:
    """A cell without its markup. A spreadsheet must not run it as a formula, which may reach the network."""
    text = "".join(part.markup if part.type == "math" else part.content for part in cell.children or ())
    text = " ".join(text.split())
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def open_fence(text: str) -> tuple[str, int] | None:
    """Marker and code offset if the text starts with an unindented fence ("```"), else None."""
    match = _FENCE.match(text)
    if match is None or not match.group().endswith("\n"):
        return None
    return match.group(1), match.end()


def closing_fence(code: str, marker: str, since: int = 0) -> re.Match[str] | None:
    """The line that closes a fence opened by `marker`, searched from `since`. None if the fence is open."""
    pattern = rf"(?m)^ {{0,3}}{re.escape(marker[0])}{{{len(marker)},}}[ \t]*$\n?"
    return re.compile(pattern).search(code, since)


def breakable(text: str) -> str:
    """The text with break opportunities in words that are too long for Qt."""
    return text if len(text) <= _LONGEST_WORD else _NO_SPACES.sub(_broken, text)


def _broken(match: re.Match[str]) -> str:
    word = match[0]
    return BREAK.join(word[at : at + _LONGEST_WORD] for at in range(0, len(word), _LONGEST_WORD))


def split_urls(text: str) -> Iterator[tuple[str, str]]:
    """Split plain text into (text, URL) parts. The URL is "" for other text."""
    position = 0
    for match in _URL.finditer(text):
        address = match.group().rstrip(_AFTER_URL)
        if address.count("(") > address.count(")") and match.group()[len(address) :].startswith(")"):
            address += ")"  # a URL may contain a pair of brackets
        if match.start() > position:
            yield text[position : match.start()], ""
        yield address, address
        position = match.start() + len(address)
    if position < len(text):
        yield text[position:], ""

"""Incremental syntax highlighting with Pygments. The cost per update does not grow with the block.

Pygments is imported on first use, because the window's first paint has no code.
"""

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygments.lexer import Lexer
    from pygments.token import _TokenType

# Maximum number of characters lexed again when a block grows. Measured: 4 KiB of Python take about 3 ms.
_LONGEST_TAIL = 4096
# In nearly every language, an unindented line after an empty line can be lexed without context.
_FRESH_LINE = re.compile(r"\n\n(?=[^\s)}\]])")


@cache
def _colours() -> tuple[tuple["_TokenType", str], ...]:
    """Token types and their syntax colours. The first match counts."""
    from pygments.token import Comment, Generic, Keyword, Name, Number, Operator, String

    return (
        (Comment, "comment"),
        (Keyword.Type, "type"),
        (Keyword, "keyword"),
        (Operator.Word, "keyword"),
        (String, "string"),
        (Number, "number"),
        (Name.Class, "type"),
        (Name.Function, "name"),
        (Name.Decorator, "name"),
        (Name.Builtin, "name"),
        (Name.Tag, "keyword"),
        (Name.Attribute, "name"),
        (Generic.Deleted, "keyword"),
        (Generic.Inserted, "string"),
    )


@lru_cache(maxsize=32)
def lexer(language: str) -> "Lexer":
    """The lexer for the word after the fence; the plain-text lexer if it is unknown."""
    from pygments.lexers import get_lexer_by_name
    from pygments.lexers.special import TextLexer
    from pygments.util import ClassNotFound

    try:
        result: Lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        result = TextLexer(stripnl=False, ensurenl=False)
    return result


@lru_cache(maxsize=512)
def colour_name(kind: "_TokenType") -> str | None:
    """The syntax colour of a token type, or None for plain text."""
    for parent, name in _colours():
        if kind is parent or parent in kind.split():
            return name
    return None


def spans(code: str, language: str) -> Iterator[tuple[str, str | None]]:
    """Yield (text, colour name) spans of the code, in order. Together the texts are the code."""
    run, run_colour = "", None
    # Some lexers, such as those of diffs and logs, recognize a line only by its line feed.
    added = not code.endswith("\n")
    tokens = list(lexer(language).get_tokens(f"{code}\n" if added else code))
    if added and tokens and tokens[-1][1].endswith("\n"):
        tokens[-1] = (tokens[-1][0], tokens[-1][1][:-1])
    for kind, text in tokens:
        colour = colour_name(kind)
        if colour == run_colour or text.isspace():
            run += text
        else:
            if run:
                yield run, run_colour
            run, run_colour = text, colour
    if run:
        yield run, run_colour


def fresh_start(code: str, since: int) -> int:
    """Offset from which to lex again after an append: a line start that is not before `since`."""
    start = since
    for match in _FRESH_LINE.finditer(code, since):
        start = match.end()
    if len(code) - start > _LONGEST_TAIL:
        start = max(start, code.rfind("\n") + 1)
    return start


def warm_up_lexers() -> None:
    """Load the most common lexers in advance: compiling one takes 10 to 100 ms, too slow during streaming."""
    for language in ("python", "bash", "json", "javascript", "c++", "html"):
        list(spans("x = 1\n", language))

"""Colouring code with Pygments, a piece at a time, so that a growing block costs the same at any size.

The window's first picture has no code and does not wait for Pygments.
"""
# ruff: noqa: PLC0415 - see above

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pygments.lexer import Lexer
    from pygments.token import _TokenType

# Longest piece lexed again when a block grows. Measured: 4 KiB of Python lex in about 3 ms.
_LONGEST_TAIL = 4096
# A line that begins at the margin after an empty one starts afresh in nearly every language.
_FRESH_LINE = re.compile(r"\n\n(?=[^\s)}\]])")


@cache
def _colours() -> tuple[tuple["_TokenType", str], ...]:
    """Token types and their syntax colours; the first that holds counts."""
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
    """The lexer for the word after the fence; plain text for an unknown one."""
    from pygments.lexers import get_lexer_by_name
    from pygments.lexers.special import TextLexer
    from pygments.util import ClassNotFound

    try:
        found: Lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        found = TextLexer(stripnl=False, ensurenl=False)
    return found


@lru_cache(maxsize=512)
def colour_name(kind: "_TokenType") -> str | None:
    """The syntax colour of a token type, None for plain text."""
    for parent, name in _colours():
        if kind is parent or parent in kind.split():
            return name
    return None


def spans(code: str, language: str) -> Iterator[tuple[str, str | None]]:
    """(text, colour name) of the code, in order; the texts join to the code."""
    run, run_colour = "", None
    for kind, text in lexer(language).get_tokens(code):
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
    """Where lexing may begin again when text is added: an offset at the start of a line, not before `since`."""
    start = since
    for match in _FRESH_LINE.finditer(code, since):
        start = match.end()
    if len(code) - start > _LONGEST_TAIL:
        start = max(start, code.rfind("\n") + 1)
    return start


def warm_up_lexers() -> None:
    """Load the lexers that answers use most; compiling one takes 10 to 100 ms, so not while text streams."""
    for language in ("python", "bash", "json", "javascript", "c++", "html"):
        list(spans("x = 1\n", language))

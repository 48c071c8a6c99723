"""Converts constraints to llguidance grammars. A child process checks them first, then the runner compiles them."""

import json
import re
from typing import Any, Final

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from engine.core.errors import ConstraintRefused
from engine.core.json_bounds import WHITESPACE

# Parts of Lark syntax that need their own treatment: comments, regular expressions, embedded JSON, and literals.
_LARK_PIECE: Final = re.compile(
    r'//[^\n]*|/(?:[^/\\\n]|\\.)+/[imslux]*|%json\s*(?=\{)|"(?P<text>(?:[^"\\\n]|\\.)*)"'
)
_matcher: Any = llguidance.LLMatcher
_json: Final = json.JSONDecoder()


def limits() -> Any:
    """Return the cost limits of one step.

    llguidance's own limit, 14 ms, stops patterns whose first step is the most expensive.
    """
    return llguidance.LLParserLimits(step_lexer_fuel=4_000_000)


def grammar_of(kind: str, source: str, controls: dict[str, int]) -> str:
    """Return the grammar of a constraint; `controls` maps the text of control tokens to their ids.

    Raises: ConstraintRefused: the source is not of its kind. Only a matcher shows whether the grammar compiles.
    """
    if kind == "json_object":
        return grammar_of_schema("{}")
    if kind == "json_schema":
        return grammar_of_schema(source)
    if kind == "regex":
        return str(_matcher.grammar_from_regex(source))
    lark = lark_of_gbnf(source) if kind == "gbnf" else source
    return str(_matcher.grammar_from_lark(spell_controls(lark, controls)))


def lark_of_gbnf(source: str) -> str:
    """Convert GBNF, llama.cpp's grammar notation, to Lark.

    Raises: ConstraintRefused: it is not GBNF.
    """
    try:
        return str(any_to_lark(source))
    except Exception as error:  # noqa: BLE001 - the converter raises any parser error
        raise ConstraintRefused(f"not GBNF: {error}") from None


def grammar_of_schema(source: str) -> str:
    """Return the grammar of a JSON schema; `{}` means any object.

    Raises: ConstraintRefused: the text is not a JSON object.
    """
    try:
        schema = json.loads(source)
        if not isinstance(schema, dict):
            raise ConstraintRefused("a schema is a JSON object")
        schema = schema or {"type": "object"}
        return str(_matcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": WHITESPACE}))
    except (ValueError, RecursionError) as error:
        raise ConstraintRefused(str(error)) from None


def spell_controls(lark: str, controls: dict[str, int]) -> str:
    """Replace control tokens in string literals by token references: a literal's bytes never match them.

    Embedded JSON schemas stay unchanged: in JSON a model writes the text of a control token as ordinary text.
    """
    names = sorted((name for name in controls if len(name) > 1 and name in lark), key=len, reverse=True)
    if not names:
        return lark
    splitter = re.compile(f"({'|'.join(map(re.escape, names))})")
    out: list[str] = []
    at = 0
    while match := _LARK_PIECE.search(lark, at):
        out.append(lark[at : match.start()])
        at = match.end()
        if match["text"] is not None:
            out.append(_spelled(match[0], splitter, controls))
        else:
            out.append(match[0])
        if match[0].startswith("%json"):
            try:
                end = _json.raw_decode(lark, at)[1]
            except (ValueError, RecursionError):
                end = at
            out.append(lark[at:end])
            at = end
    return "".join(out) + lark[at:]


def _spelled(literal: str, splitter: re.Pattern[str], controls: dict[str, int]) -> str:
    try:
        text = json.loads(literal)
    except ValueError:
        return literal
    pieces = splitter.split(text)
    if len(pieces) == 1:
        return literal
    return " ".join(f"<[{controls[p]}]>" if p in controls else json.dumps(p) for p in pieces if p)

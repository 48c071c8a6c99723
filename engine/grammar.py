"""Constraints as llguidance grammars: compiled in the runner, and checked in a child before that."""

import json
import re
from typing import Any, Final

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from engine.errors import ConstraintRefused

# Weak models write white space for ever if they may. One blank or one line break with indentation is all that
# formatted JSON needs.
WHITESPACE: Final = r"(\x20|\r?\n[\x20\t]{0,48})?"
_STRING_LITERAL: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_matcher: Any = llguidance.LLMatcher


def grammar_of(kind: str, source: str, controls: dict[str, int]) -> str:
    """The grammar of a constraint; `controls` maps the text of control tokens to their ids.

    Raises: ConstraintRefused: the source is not of its kind. Whether it compiles shows only in a matcher.
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
    """llama.cpp's grammar notation as Lark.

    Raises: ConstraintRefused: it is not GBNF.
    """
    try:
        return str(any_to_lark(source))
    except Exception as error:  # noqa: BLE001 - the converter raises whatever its own parser stumbles over
        raise ConstraintRefused(f"not GBNF: {error}") from None


def grammar_of_schema(source: str) -> str:
    """The grammar of a JSON schema; `{}` means any object.

    Raises: ConstraintRefused: the text is no JSON object.
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
    """Control tokens inside string literals as token references: a literal's bytes never match them."""
    names = sorted((name for name in controls if len(name) > 1 and name in lark), key=len, reverse=True)
    if not names:
        return lark
    splitter = re.compile("|".join(map(re.escape, names)))

    def respell(match: re.Match[str]) -> str:
        try:
            text = json.loads(match[0])
        except ValueError:
            return match[0]
        pieces = re.split(f"({splitter.pattern})", text)
        if len(pieces) == 1:
            return match[0]
        return " ".join(f"<[{controls[p]}]>" if p in controls else json.dumps(p) for p in pieces if p)

    lines = lark.split("\n")
    return "\n".join(line if line.startswith("%") else _STRING_LITERAL.sub(respell, line) for line in lines)

"""Hostile schemas and grammars are refused in bounded time, or obeyed; the child is replaced."""

import asyncio
import json
import time

import pytest

from engine.chat.structured import ConstraintChecker, ConstraintImpossible, of_grammar, of_schema
from engine.core.types import Constraint


@pytest.fixture(scope="module")
def checker():
    checker = ConstraintChecker()
    asyncio.run(checker.check(Constraint(kind="json_object", source="{}"), "warm"))
    yield checker
    checker.close()


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


REFUSED_SCHEMAS = {
    "minLength 1e6": {"type": "string", "minLength": 1_000_000},
    "minItems 2^63": {"type": "array", "minItems": 2**63},
    "depth 400": nested(400),
    "depth 100,000": nested(90_000),
    "5,000 optional members": {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(5000)}},
    "alternatives": {
        "anyOf": [
            {"type": "object", "properties": {f"k{j}": {"type": "string"} for j in range(50)}} for _ in range(300)
        ]
    },
    "unknown keyword": {"not": {"type": "string"}},
    "unknown type": {"type": "strng"},
    "foreign reference": {"$ref": "http://127.0.0.1:9/schema"},
    "dangling reference": {"$ref": "#/$defs/nothing"},
    "unsatisfiable": {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "bad pattern": {"type": "string", "pattern": "(a"},
    "no object": ["a"],
    "text": "{}",
}


@pytest.mark.parametrize("name", REFUSED_SCHEMAS)
def test_schemas_that_cannot_be_honoured_are_refused_in_time(checker, name):
    began = time.monotonic()
    with pytest.raises(ConstraintImpossible) as caught:
        asyncio.run(checker.check(of_schema(REFUSED_SCHEMAS[name], "response_format"), "response_format"))
    assert time.monotonic() - began < 40, "a stopped child may not hold its caller"
    assert caught.value.param == "response_format"
    assert str(caught.value).startswith("response_format: this form of output cannot be guaranteed: ")
    assert asyncio.run(checker.check(of_schema({"type": "object"}, "p"), "p")).kind == "json_schema"


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "(a"),
        ("regex", r"(a)\1"),
        ("lark", "start: missing"),
        ("lark", 'start: start "a"'),
        ("lark", "no grammar at all"),
        ("gbnf", "root = 'a'"),
        ("regex", ""),
        ("lark", None),
        ("regex", "a" * (2 << 20)),
        ("lark", "start: " + "(" * 100_000),
        ("regex", "\ud800"),
    ],
)
def test_grammars_that_cannot_be_honoured_are_refused(checker, kind, source):
    with pytest.raises(ConstraintImpossible):
        asyncio.run(checker.check(of_grammar(kind, source, "grammar"), "grammar"))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("lark", 'start: start "a" | "b"'),
        ("lark", 'start: a\na: a a | "x" | ""'),
        ("lark", "\n".join(["start: a0", *(f"a{i}: a{i + 1} a{i + 1}" for i in range(60)), 'a60: "x" | ""'])),
        ("regex", "(a+)+$"),
        ("regex", "(a{1,100}){1,100}"),
        ("gbnf", 'root ::= root "a" | "b"'),
    ],
)
def test_recursion_and_repetition_are_honoured_quickly(checker, kind, source):
    assert asyncio.run(checker.check(of_grammar(kind, source, "grammar"), "grammar")).kind in {"lark", "regex"}


def test_verdicts_are_kept(checker):
    schema = {"type": "object", "properties": {"kept": {"type": "integer"}}, "additionalProperties": False}
    constraint = of_schema(schema, "p")
    asyncio.run(checker.check(constraint, "p"))
    pid = checker.child.pid
    checker.child.close()
    assert asyncio.run(checker.check(constraint, "p")) == constraint
    assert checker.child.pid is None, "no child was needed"
    assert pid is not None


def test_ordinary_schemas_pass_unchanged(checker):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/x"}}},
        "$defs": {"x": {"enum": [1]}},
        "additionalProperties": False,
    }
    constraint = asyncio.run(checker.check(of_schema(schema, "p"), "p"))
    assert json.loads(constraint.source) == schema

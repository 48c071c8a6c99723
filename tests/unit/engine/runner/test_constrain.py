"""Whatever the model's logits are, its output satisfies the grammar."""

import json
import random
import re

import jsonschema
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.errors import ConstraintRefused
from engine.core.grammar import spell_controls
from engine.core.types import Constraint
from engine.runner.generation.grammar_mask import ConstraintCompiler
from tests.support.examples import examples

EOS, CONTROL = 256, 257


class BytesAndWords:
    """A vocabulary of all bytes, two special tokens and tokens that cross JSON's boundaries."""

    def __init__(self, *more):
        words = [
            '{"',
            '":',
            '",',
            '"}',
            "}}",
            "]",
            '["',
            ", ",
            "true",
            "null",
            "-1",
            "10",
            "name",
            "é",
            "</think>",
            "<th",
            "ink>",
        ]
        words += more
        self.pieces = [bytes([b]) for b in range(256)] + [b"<eos>", b"<|call|>"] + [w.encode() for w in words]
        self.size = len(self.pieces)
        self.ends = frozenset({EOS})
        self.control = frozenset({EOS, CONTROL})

    def tokenize(self, text, *, add_special, parse_special):
        return list(text.encode())


VOCABULARY = BytesAndWords()
COMPILER = ConstraintCompiler(VOCABULARY)


def generate(constraint, rng, limit=600, wish="", compiler=COMPILER):
    """Draw from random logits, as the scheduler does; None: not complete within the limit.

    `wish` is text that the model prefers to generate first.
    """
    state = compiler.compile(constraint)
    vocabulary = compiler._vocabulary
    out = b""
    for _ in range(limit):
        row = rng.standard_normal(vocabulary.size).astype(np.float32) * 3
        row[[ord(c) for c in '"}]']] += 6  # so that strings and lists end
        row[EOS] += 3
        row[VOCABULARY.size :] += 6
        if len(out) < len(wish):
            row[wish.encode()[len(out)]] += 100
        token = int(row.argmax())
        if not state.allows(token):
            state.mask(row)
            assert state.error == ""
            token = int(row.argmax())
            assert state.allows(token)
        if token == EOS:
            return out.decode()
        state.accept(token)
        assert state.error == ""
        out += vocabulary.pieces[token]
        if state.finished:
            return out.decode()
    return None


scalars = st.sampled_from(
    [
        {"type": "string"}, {"type": "string", "maxLength": 5}, {"type": "string", "pattern": "^[a-c]{2,4}$"},
        {"type": "integer"}, {"type": "integer", "minimum": -5, "maximum": 7}, {"type": "number", "minimum": 0},
        {"type": "boolean"}, {"type": "null"}, {"enum": ["x", 1, None, {"a": [1]}]}, {"const": 'fixed "text"'},
        {"type": ["string", "null"]},
    ]
)  # fmt: skip


def objects(inner):
    names = st.lists(st.sampled_from(["a", "b", "name", "größe", 'q"q']), unique=True, max_size=4)
    return names.flatmap(
        lambda keys: st.builds(
            lambda values, required, closed: {
                "type": "object",
                "properties": dict(zip(keys, values, strict=True)),
                "required": [k for k, r in zip(keys, required, strict=True) if r],
                **({"additionalProperties": False} if closed else {}),
            },
            st.lists(inner, min_size=len(keys), max_size=len(keys)),
            st.lists(st.booleans(), min_size=len(keys), max_size=len(keys)),
            st.booleans(),
        )
    )


schemas = st.recursive(
    scalars,
    lambda inner: (
        objects(inner)
        | st.builds(
            lambda i, low: {"type": "array", "items": i, "minItems": low, "maxItems": low + 2},
            inner,
            st.integers(0, 2),
        )
        | st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
    ),
    max_leaves=6,
)


@given(schemas, st.integers(0, 2**32 - 1))
@settings(max_examples=examples(150), deadline=None)
def test_random_schemas_with_random_logits_always_validate(schema, seed):
    text = generate(Constraint(kind="json_schema", source=json.dumps(schema)), np.random.default_rng(seed))
    if text is not None:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@given(schemas, st.integers(0, 2**32 - 1))
@settings(max_examples=examples(100), deadline=None)
def test_forced_tokens_are_what_any_output_spells_next(schema, seed):
    """Queried at every step of a random output: they are the bytes that follow, and a query changes nothing."""
    state = COMPILER.compile(Constraint(kind="json_schema", source=json.dumps(schema)))
    rng, out, promised = np.random.default_rng(seed), b"", []
    for _ in range(200):
        forced = state.forced(8)
        assert len(forced) <= 8
        promised.append((len(out), b"".join(VOCABULARY.pieces[token] for token in forced)))
        row = rng.standard_normal(VOCABULARY.size).astype(np.float32)
        row[[ord(c) for c in '"}]']] += 4
        state.mask(row)
        token = int(row.argmax())
        if token == EOS:
            break
        state.accept(token)
        out += VOCABULARY.pieces[token]
        if state.finished:
            break
    for at, text in promised:
        told = min(len(text), len(out) - at)
        assert out[at : at + told] == text[:told]


def test_nothing_is_forced_before_the_constraint_begins_and_after_its_end():
    state = COMPILER.compile(Constraint(kind="regex", source="abc", trigger="!"))
    assert state.forced(8) == []
    for byte in b"x!":
        state.accept(byte)
    assert state.forced(8) == list(b"abc")
    assert state.forced(2) == list(b"ab")
    assert state.forced(0) == []
    for byte in b"abc":
        state.accept(byte)
    assert state.finished
    assert state.forced(8) == []


def test_most_of_those_outputs_do_end():
    rng = np.random.default_rng(0)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }
    done = [generate(Constraint(kind="json_schema", source=json.dumps(schema)), rng) for _ in range(20)]
    assert sum(text is not None for text in done) >= 18, "a test that never completes an output proves nothing"


@pytest.mark.parametrize("kind", ["json_object", "regex", "lark", "gbnf"])
def test_every_kind(kind):
    sources = {
        "json_object": ("", lambda text: isinstance(json.loads(text), dict)),
        "regex": ("[a-f]{3}-[0-9]{2}", lambda text: re.fullmatch("[a-f]{3}-[0-9]{2}", text)),
        "lark": ('start: "yes" | "no"', lambda text: text in {"yes", "no"}),
        "gbnf": ('root ::= "a" [0-9] ("b" | "c")', lambda text: re.fullmatch("a[0-9][bc]", text)),
    }
    source, holds = sources[kind]
    for seed in range(10):
        text = generate(Constraint(kind=kind, source=source), np.random.default_rng(seed), limit=3000)
        assert text is None or holds(text)


SCHEMA = json.dumps(
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
)


def test_reasoning_may_come_first_and_the_answer_cannot_end_in_it():
    constraint = Constraint(kind="json_schema", source=SCHEMA, preamble=("<think>", "</think>"))
    wish = "<think>so be it</think>"
    for seed in range(8):
        text = generate(constraint, np.random.default_rng(seed), wish=wish)
        if text is not None:
            assert text.startswith("<think>so be it</think>")
            assert "n" in json.loads(text.removeprefix(wish))
    text = generate(constraint, np.random.default_rng(1), wish='{"n": 4}')
    assert json.loads(text) == {"n": 4}


def test_open_reasoning_is_awaited():
    constraint = Constraint(kind="json_schema", source=SCHEMA, preamble=("<think>", "</think>"), preamble_open=True)
    state = COMPILER.compile(constraint)
    assert not state.allows(EOS)
    for char in b"free {text} <eos":
        assert state.allows(char)
        state.accept(char)
    state.accept(VOCABULARY.pieces.index(b"</think>"))
    assert not state.allows(ord("x"))
    assert state.allows(ord("{"))


def test_a_trigger_may_never_come():
    state = COMPILER.compile(Constraint(kind="json_schema", source=SCHEMA, trigger="<tool_call>"))
    for char in b"no call":
        state.accept(char)
    assert state.allows(EOS)
    for char in b"<tool_call>":
        state.accept(char)
    assert not state.allows(EOS)
    assert not state.allows(ord("n"))
    assert state.allows(ord("{"))


def test_a_trigger_inside_reasoning_does_not_count():
    whole = Constraint(kind="json_schema", source=SCHEMA, trigger="<tool_call>", preamble=("<think>", "</think>"))
    for is_open, thought in ((False, b"<think>as in <tool_call>x"), (True, b"as in <tool_call>x<think>")):
        state = COMPILER.compile(msgspec.structs.replace(whole, preamble_open=is_open))
        for char in thought:
            assert state.allows(char)
            state.accept(char)
        assert state.allows(EOS)
        for char in b"</think>Well, <tool_call>":
            state.accept(char)
        assert not state.allows(ord("n"))
        assert state.allows(ord("{"))


def test_text_behind_a_trigger_in_the_same_token_counts():
    vocabulary = BytesAndWords()
    vocabulary.pieces.append(b'</think>{"n"')
    vocabulary.size += 1
    state = ConstraintCompiler(vocabulary).compile(
        Constraint(kind="json_schema", source=SCHEMA, preamble=("<think>", "</think>"), preamble_open=True)
    )
    state.accept(vocabulary.size - 1)
    assert state.allows(ord(":"))
    assert not state.allows(ord("{"))


def test_control_tokens_in_embedded_schemas_are_ordinary_text():
    schema = '{"enum": ["<|call|>", "a \\"<|call|>"], "description": "<|call|> {"}'
    lark = f'start: "<|call|>" %json {schema} /"<|call|>"/ "<|call|>" // "<|call|>"'
    spelled = spell_controls(lark, {"<|call|>": CONTROL})
    assert spelled == f'start: <[257]> %json {schema} /"<|call|>"/ <[257]> // "<|call|>"'
    state = COMPILER.compile(Constraint(kind="lark", source=spelled))
    assert state.allows(CONTROL)
    state.accept(CONTROL)
    for char in b'"<|call|>"':
        assert state.allows(char)
        state.accept(char)


def test_control_tokens_in_literals_are_matched_by_the_token_only():
    lark = 'start: "<|call|>x" "plain"'
    assert spell_controls(lark, {"<|call|>": CONTROL}) == 'start: <[257]> "x" "plain"'
    state = COMPILER.compile(Constraint(kind="lark", source=lark))
    assert state.allows(CONTROL)
    assert not state.allows(ord("<"))


@pytest.mark.parametrize(
    ("kind", "source"),
    [("json_schema", "[]"), ("json_schema", "{"),
     ("json_schema", '{"type": "strng"}'), ("json_schema", '{"not": {}}'),
     ("json_schema", '{"$ref": "http://example.com/s"}'), ("regex", "(a"), ("regex", r"(a)\1"),
     ("lark", "start: nope"),
     ("lark", ""), ("gbnf", "nonsense"), ("gbnf", ""), ("lark", 'start: start "a"')],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused(kind, source):
    with pytest.raises(ConstraintRefused):
        COMPILER.compile(Constraint(kind=kind, source=source))


def test_any_soup_of_tokens_is_survived():
    rng = random.Random(3)
    for _ in range(50):
        state = COMPILER.compile(Constraint(kind="json_schema", source=SCHEMA))
        for _ in range(20):
            token = rng.randrange(VOCABULARY.size)
            state.allows(token)
            state.accept(token)


@pytest.mark.parametrize("indent", [None, 2, 8])
def test_compact_and_indented_json_both_pass(indent):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
        "required": ["a"],
    }
    for separators in ((",", ":"), (", ", ": ")) if indent is None else ((",", ": "),):
        text = json.dumps({"a": [1, 2]}, indent=indent, separators=separators)
        state = COMPILER.compile(Constraint(kind="json_schema", source=json.dumps(schema)))
        for byte in text.encode():
            assert state.allows(byte), (text, chr(byte))
            state.accept(byte)
        assert state.complete

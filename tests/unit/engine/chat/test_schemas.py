"""Schemas that clients send: keywords without effect are removed; unenforceable ones are reported or refused."""

import asyncio
import json
import random

import jsonschema
import llguidance
import pytest

from devices.child import ChildFailed
from engine.chat.grammar_check_child import Checker
from engine.chat.render_protocol import GrammarCheckRequest
from engine.chat.schemas import FORMATS, closed, shape, tidy
from engine.chat.structured import ConstraintChecker, ConstraintImpossible, of_schema
from engine.chat.tools.dialects import BY_NAME
from engine.chat.tools.grammar import tool_grammar
from engine.chat.types import ToolDefinition
from engine.core.grammar import grammar_of

CHECKER = Checker()
TEXT = {"type": "string"}
LIST = {"type": "array", "items": TEXT}


def accepts(source, value):
    """Whether a model may generate this value under a checked schema."""
    matcher = llguidance.LLMatcher(CHECKER._tokenizer, grammar_of("json_schema", source, {}), log_level=0)
    return all(matcher.consume_token(byte) for byte in json.dumps(value).encode()) and matcher.is_accepting()


def tried(part, *, strict):
    """The result for an object with one member of this schema, and the member's schema afterwards."""
    whole = {"type": "object", "properties": {"q": part}, "required": ["q"], "$defs": {"c": {"enum": ["a", "b"]}}}
    verdict = CHECKER.check(GrammarCheckRequest(kind="json_schema", source=json.dumps(whole), strict=strict))
    return verdict, json.loads(verdict.source)["properties"]["q"]


NOTHING = {
    "uniqueItems false": {**LIST, "uniqueItems": False},
    "a list of one": {**LIST, "uniqueItems": True, "maxItems": 1},
    "names are texts": {"type": "object", "propertyNames": TEXT, "additionalProperties": {}},
    "any name": {"type": "object", "propertyNames": {}},
    "empty if": {"if": {"type": "string"}},
    "then without if": {**TEXT, "then": {"minLength": 3}},
    "not false": {**TEXT, "not": False},
    "no dependencies": {"type": "object", "dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}},
    "counts without contains": {**LIST, "minContains": 2, "maxContains": 3},
    "contains nothing": {**LIST, "contains": {"type": "string"}, "minContains": 0},
    "unevaluated true": {"type": "object", "unevaluatedProperties": True},
    "no lower bounds": {"type": "object", "properties": {"a": TEXT}, "minProperties": 0},
    "more elements than fit": {**LIST, "maxItems": 1_000_000},
    "whole numbers as floats": {**LIST, "minItems": 1.0, "maxItems": 2.0},
    "draft 4": {"type": "number", "maximum": 5, "exclusiveMaximum": True, "exclusiveMinimum": False},
    "capitals": {"type": "STRING"},
    "annotations": {**TEXT, "description": 1, "examples": 1, "contentEncoding": "base64", "nullable": True},
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING)
def test_what_asserts_nothing_is_no_reason_to_refuse(name):
    for strict in (True, False):
        verdict, _ = tried(NOTHING[name], strict=strict)
        assert (verdict.problem, verdict.dropped) == ("", ())


UNKNOWN_FORMATS = (
    "password", "path", "file-path", "binary", "byte", "base64", "int32", "ipv4network", "ipvanyaddress",
    "uri-reference", "iri", "regex", "json-pointer", "color", "uuid4", "url", "topic", "date-time-local", "decimal",
)  # fmt: skip


A = {"type": "object", "properties": {"kind": {"const": "a"}, "x": TEXT}, "required": ["kind"]}
B = {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}, "y": TEXT}, "required": ["kind"]}
DISTINCT = {
    "types": [TEXT, {"type": "integer"}, {"type": ["array", "null"]}],
    "a required member": [A, B],
    "a referred member": [A, {**B, "properties": {"kind": {"$ref": "#/$defs/k"}}}],
    "a referred branch": [A, {"$ref": "#/$defs/b"}],
}
ALIKE = {
    "the same value": [A, {**B, "properties": {"kind": {"enum": ["a", "b"]}}}],
    "a member that may be missing": [{**A, "required": []}, {**B, "required": []}],
    "numbers": [{"type": "integer"}, {"type": "number"}],
    "no types": [{"minLength": 1}, {"minimum": 1}],
}


@pytest.mark.parametrize("name", [*DISTINCT, *ALIKE])
def test_branches_that_cannot_overlap_are_alternatives(name):
    branches = DISTINCT.get(name) or ALIKE[name]
    whole = {"properties": {"q": {"oneOf": branches}}, "$defs": {"k": {"const": "z"}, "b": B}}
    made = tidy(whole)["properties"]["q"]
    assert made == ({"anyOf": branches} if name in DISTINCT else {"oneOf": branches})
    verdict = CHECKER.check(GrammarCheckRequest(kind="json_schema", source=json.dumps(whole)))
    assert (verdict.problem == "") == (name in DISTINCT)


def test_a_discriminator_is_kept():
    part = {"oneOf": [{"$ref": "#/$defs/c"}], "discriminator": {"propertyName": "kind"}}
    assert "discriminator" in tidy(part)


def test_an_unknown_format_is_an_annotation():
    for found in UNKNOWN_FORMATS:
        verdict, made = tried({**TEXT, "format": found, "maxLength": 3}, strict=True)
        assert (verdict.problem, made) == ("", {**TEXT, "maxLength": 3})
    for found in FORMATS:
        made = tried({**TEXT, "format": found}, strict=True)[1]
        assert made.get("format") == found or made["pattern"]


# Texts of a format, and texts that only resemble it.
FORMAT_TEXTS = {
    "date": (["2024-02-29", "2000-02-29", "0001-01-01", "2023-12-31"],
             ["2021-02-29", "2100-02-29", "2023-04-31", "2023-13-01", "0000-01-01", "2023-00-10", "2023-1-1"]),
    "time": (["22:59:59Z", "00:00:00.123456+05:30"], ["22:59:60Z", "24:00:00Z", "22:59:59", "22:59:59+24:00"]),
    "date-time": (["2024-02-29T12:00:00Z"], ["2021-02-29T12:00:00Z", "2021-02-28T23:59:60Z", "2021-02-28"]),
    "hostname": (["a", "a-b.example", "a1.b2", "ab-c.de", "a" * 63, ".".join(["a" * 49] * 5)],
                 ["-a", "a-", "a..b", "xn--a.example", "a" * 64, ".".join(["a" * 60] * 5), ""]),
}  # fmt: skip


@pytest.mark.parametrize("pattern", [None, "^.*$"])
@pytest.mark.parametrize("name", FORMAT_TEXTS)
def test_dates_and_names_in_networks_are_right_to_the_day_and_the_letter(name, pattern):
    right, wrong = FORMAT_TEXTS[name]
    part = {**TEXT, "format": name, **({"pattern": pattern} if pattern else {})}
    verdict, _ = tried(part, strict=True)
    assert verdict.problem == ""
    for text in right:
        assert accepts(verdict.source, {"q": text}), text
    for text in wrong:
        assert not accepts(verdict.source, {"q": text}), text


def test_a_date_that_a_pattern_makes_impossible_is_refused():
    verdict, _ = tried({**TEXT, "format": "date", "pattern": "^2021-02-29$"}, strict=True)
    assert "Unsatisfiable" in verdict.problem


X, Y = {"x": {"type": "integer"}}, {"y": {"type": "integer"}}
# A oneOf that the engine does not support; values it allows; values of none or of several branches.
ONE_OF = {
    "other required members": (
        {"oneOf": [{"type": "object", "properties": X, "required": ["x"]},
                   {"type": "object", "properties": Y, "required": ["y"]}]},
        [{"x": 1}, {"y": 1}], [{"x": 1, "y": 1}, {}, {"y": "a"}]),
    "members outside": (
        {"type": "object", "properties": X | Y, "oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
        [{"x": 1}, {"y": 1}], [{"x": 1, "y": 1}, {}]),
    "three": (
        {"properties": X | Y | {"z": TEXT}, "oneOf": [{"required": [name]} for name in "xyz"]},
        [{"x": 1}, {"z": "a"}], [{"x": 1, "z": "a"}, {"x": 1, "y": 1, "z": "a"}, {}]),
    "patterns": ({"oneOf": [{**TEXT, "pattern": "^a+$"}, {**TEXT, "pattern": "^b+$"}]}, ["aa", "b"], ["ab", ""]),
    "type outside": ({**TEXT, "oneOf": [{"format": "ipv4"}, {"format": "ipv6"}]}, ["1.2.3.4", "::1"], ["a", 1]),
    "numbers": ({"oneOf": [{"type": "number", "maximum": 5}, {"type": "number", "exclusiveMinimum": 5}]},
                [4.5, 5.5], ["5"]),
    "references": ({"oneOf": [{"$ref": "#/$defs/c"}, {**TEXT, "pattern": "^x"}]}, ["a", "xx"], ["c"]),
    "nested": ({"type": "array", "items": {"oneOf": [{"type": "object", "required": ["x"]},
                                                     {"type": "object", "required": ["y"]}]}},
               [[{"x": 1}, {"y": 1}]], [[{"x": 1, "y": 1}], [{}]]),
}  # fmt: skip


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ONE_OF)
def test_branches_of_a_one_of_are_told_apart(name, strict):
    part, right, wrong = ONE_OF[name]
    verdict, _ = tried(part, strict=strict)
    assert (verdict.problem, verdict.dropped) == ("", ())
    whole = {"type": "object", "properties": {"q": part}, "$defs": {"c": {"enum": ["a", "b"]}}}
    checks = jsonschema.FormatChecker()
    for value in right:
        jsonschema.validate({"q": value}, whole, format_checker=checks)
        assert accepts(verdict.source, {"q": value}), value
    for value in wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"q": value}, whole, format_checker=checks)
        assert not accepts(verdict.source, {"q": value}), value


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "integer"}, {"type": "number"}],
        [TEXT, {"enum": ["a"]}],
        [{"type": "object"}, {"type": "object", "required": ["x"]}],
    ],
)
def test_a_branch_within_another_one_is_refused_with_its_place(branches):
    verdict, _ = tried({"oneOf": branches}, strict=True)
    assert (
        verdict.problem == "q: the exclusiveness of oneOf cannot be enforced (the branches of a oneOf may overlap)"
    )


def test_other_keywords_next_to_a_reference_are_ignored_in_old_drafts():
    node = {"type": "object", "properties": {"n": {"$ref": "#/definitions/N", "minProperties": 3}}}
    whole = {"$ref": "#/definitions/N", "definitions": {"N": node}}
    for draft in ("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema"):
        source = json.dumps({"$schema": draft, **whole})
        assert CHECKER.check(GrammarCheckRequest(kind="json_schema", source=source)).problem == ""
    assert "circular" in CHECKER.check(GrammarCheckRequest(kind="json_schema", source=json.dumps(whole))).problem


def test_a_schema_within_itself_may_have_keywords_without_effect():
    lists = {"type": "object", "properties": {"items": {"type": "array", "items": {"$ref": "#"}}}}
    texts = {"type": "object", "properties": {"text": TEXT}}
    whole = {"type": "object", "additionalProperties": {}, "anyOf": [{"$ref": "#/$defs/L"}, {"$ref": "#/$defs/T"}],
             "$defs": {"L": lists, "T": texts}}  # fmt: skip
    verdict = CHECKER.check(GrammarCheckRequest(kind="json_schema", source=json.dumps(whole)))
    assert verdict.problem == ""
    assert accepts(verdict.source, {"items": [{"text": "a"}, {"items": []}]})


EQUIVALENT = {
    "names of an enum": ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, [{"a": 1}], [{"c": 1}]),
    "names of a referred enum": (
        {"type": "object", "propertyNames": {"$ref": "#/$defs/c"}, "additionalProperties": {"type": "integer"}},
        [{"a": 1, "b": 2}],
        [{"c": 1}, {"a": "x"}],
    ),
    "names of a pattern": (
        {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": {"type": "integer"}},
        [{"ab": 1}, {}],
        [{"b": 1}, {"a": "x"}],
    ),
    "names of a length": (
        {"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3}},
        [{"ab": 1, "abc": 2}, {}],
        [{"a": 1}, {"abcd": 1}],
    ),
    "names of an alternative of texts": (
        {"type": "object", "propertyNames": {"anyOf": [{"const": "a"}, {"enum": ["b", "c"]}]}},
        [{"a": 1, "c": 2}],
        [{"d": 1}],
    ),
    "names of an enum that a pattern restricts": (
        {"type": "object", "propertyNames": {"enum": ["a", "bb"], "pattern": "^.$"}},
        [{"a": 1}],
        [{"bb": 1}],
    ),
    "names of a pattern beside named members": (
        {"type": "object", "properties": {"x_a": TEXT, "y": TEXT}, "propertyNames": {"pattern": "^x_"}},
        [{"x_a": "t", "x_b": 1}],
        [{"y": "t"}, {"x_a": 1}],
    ),
    "names of a format": (
        {"type": "object", "propertyNames": {"format": "uuid"}, "additionalProperties": {"type": "integer"}},
        [{"123e4567-e89b-12d3-a456-426614174000": 1}],
        [{"a": 1}],
    ),
    "no names": ({"type": "object", "propertyNames": False}, [{}], [{"a": 1}]),
    "unevaluated": (
        {"type": "object", "properties": {"a": TEXT}, "unevaluatedProperties": False},
        [{}],
        [{"b": 1}],
    ),
    "draft 4": ({"type": "integer", "maximum": 5, "exclusiveMaximum": True}, [4], [5]),
}


@pytest.mark.parametrize("name", EQUIVALENT)
def test_what_has_an_enforceable_form_is_written_in_it(name):
    part, right, wrong = EQUIVALENT[name]
    whole = tidy({"properties": {"q": part}, "$defs": {"c": {"enum": ["a", "b"], "title": "C"}}})
    verdict = CHECKER.check(GrammarCheckRequest(kind="json_schema", source=json.dumps(whole)))
    assert verdict.problem == ""
    for value in right:
        jsonschema.validate({"q": value}, whole)
    for value in wrong:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"q": value}, whole)


UNENFORCEABLE = {
    "uniqueItems": ({**LIST, "uniqueItems": True}, LIST),
    "contains": ({**LIST, "contains": {"const": "x"}, "minContains": 1}, LIST),
    "not": ({**TEXT, "not": {"const": "x"}}, TEXT),
    "if": ({**TEXT, "if": {"const": "x"}, "then": {"minLength": 3}}, TEXT),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, {"type": "object"}),
    "dependencies": ({"type": "object", "dependencies": {"a": ["b"]}}, {"type": "object"}),
    "propertyNames": ({"type": "object", "propertyNames": {"minLength": 2, "pattern": "^a"}}, {"type": "object"}),
    "pattern": ({**TEXT, "pattern": r"^(?=.*@)[^@]+$"}, TEXT),
    "patternProperties": ({"type": "object", "patternProperties": {"(a)\\1": TEXT}, "additionalProperties": False},
                          {"type": "object", "patternProperties": {}}),
    "oneOf": ({"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["a", "b"]}]},
              {"anyOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["a", "b"]}]}),
    "minProperties": ({"type": "object", "properties": {"a": TEXT}, "additionalProperties": True,
                       "minProperties": 1},
                      {"type": "object", "properties": {"a": TEXT}, "additionalProperties": True}),
    "$ref": ({"$ref": "https://example.com/schema"}, {}),
    "type": ({"type": "any"}, {}),
    "minimum": ({"type": "integer", "minimum": "1"}, {"type": "integer"}),
    "required": ({"type": "object", "required": True}, {"type": "object"}),
}  # fmt: skip


@pytest.mark.parametrize("name", UNENFORCEABLE)
def test_what_cannot_be_enforced_is_dropped_and_named_or_refused(name):
    part, left = UNENFORCEABLE[name]
    verdict, made = tried(part, strict=False)
    assert verdict.problem == ""
    assert made == left
    assert any(name in what for what in verdict.dropped)
    assert all(what.startswith("q: ") for what in verdict.dropped)
    refused = tried(part, strict=True)[0].problem
    assert "q: " in refused
    assert name in refused
    assert "coerce" not in refused


@pytest.mark.slow
def test_a_large_schema_loses_the_branches_that_cannot_be_merged_and_nothing_else():
    content = {
        "type": "object",
        "properties": {
            "links": {"$ref": "#/definitions/links"},
            "kind": {"oneOf": [{"pattern": "^a"}, {"pattern": "b"}]},
        },
    }
    links = {
        "type": "object",
        "properties": {"first": {"items": {"$ref": "#/definitions/plain"}}},
        "patternProperties": {".*": {"items": {"anyOf": [{"$ref": "#/definitions/content"}]}}},
    }
    padding = {
        f"unused{i}": {"type": "object", "properties": {f"a{k}": TEXT for k in range(60)}} for i in range(40)
    }
    whole = {
        "$ref": "#/definitions/content",
        "definitions": {"content": content, "links": links, "plain": {"type": "object"}, **padding},
    }
    source = json.dumps(whole)
    verdict = CHECKER.check(GrammarCheckRequest(kind="json_schema", source=source, strict=False))
    assert verdict.problem == ""
    assert set(verdict.dropped) == {
        "definitions/content.kind: the exclusiveness of oneOf",
        "definitions/links: patternProperties",
    }
    strict = CHECKER.check(GrammarCheckRequest(kind="json_schema", source=source)).problem
    assert "definitions/links: patternProperties" in strict


ADDRESS = {"type": "object", "properties": {"city": TEXT}, "required": ["city"]}
# A schema; values that may be generated; values that may not, although the schema allows them.
CLOSED = {
    "plain": ({"properties": {"a": TEXT}}, [{}, {"a": "x"}], [{"b": 1}, {"a": "x", "b": 1}]),
    "nested": ({"properties": {"at": ADDRESS}}, [{"at": {"city": "x"}}], [{"at": {"city": "x", "b": 1}}]),
    "in a list": ({"properties": {"at": {"type": "array", "items": ADDRESS}}}, [{"at": [{"city": "x"}]}],
                  [{"at": [{"city": "x", "b": 1}]}]),
    "referred": ({"properties": {"at": {"$ref": "#/$defs/A"}}, "$defs": {"A": ADDRESS}}, [{"at": {"city": "x"}}],
                 [{"at": {"city": "x", "b": 1}}]),
    "recursive": ({"$ref": "#/$defs/N",
                   "$defs": {"N": {"properties": {"n": TEXT, "next": {"$ref": "#/$defs/N"}}}}},
                  [{"n": "x", "next": {"n": "y"}}], [{"n": "x", "next": {"m": 1}}, {"m": 1}]),
    "as pydantic 1 refers": ({"properties": {"at": {"title": "At", "allOf": [{"$ref": "#/definitions/A"}]}},
                              "definitions": {"A": ADDRESS}},
                             [{"at": {"city": "x"}}], [{"at": {"city": "x", "b": 1}}]),
    "optional": ({"properties": {"at": {"anyOf": [ADDRESS, {"type": "null"}]}}},
                 [{"at": None}, {"at": {"city": "x"}}],
                 [{"at": {"city": "x", "b": 1}}]),
    "alternatives": ({"type": "object", "anyOf": [A, B]}, [{"kind": "a", "x": "1"}, {"kind": "b", "y": "1"}],
                     [{"kind": "a", "z": 1}]),
    "an heir": ({"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"zip": TEXT}, "required": ["zip"]}],
                 "$defs": {"A": ADDRESS}}, [{"city": "x", "zip": "1"}], [{"city": "x", "zip": "1", "b": 1}]),
    "an heir of an heir": ({"$ref": "#/$defs/C", "$defs": {
        "A": ADDRESS, "B": {"allOf": [{"$ref": "#/$defs/A"}], "properties": {"b": TEXT}},
        "C": {"allOf": [{"$ref": "#/$defs/B"}], "properties": {"c": TEXT}}}},
        [{"city": "x", "b": "1", "c": "1"}, {"city": "x"}], [{"city": "x", "d": 1}]),
    "a name that is only required": ({"properties": {"a": TEXT}, "required": ["a", "b"]}, [{"a": "x", "b": 1}],
                                     [{"a": "x", "b": 1, "c": 1}]),
    "one of two must be there": ({"properties": {"a": TEXT, "b": TEXT},
                                  "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
                                 [{"a": "x"}, {"b": "x"}], [{"a": "x", "c": 1}]),
    "one of two kinds": ({"properties": {"p": {"oneOf": [A, B]}}}, [{"p": {"kind": "a"}}],
                         [{"p": {"kind": "a", "z": 1}}]),
    "a number of them": ({"properties": {"a": TEXT, "b": TEXT}, "minProperties": 1}, [{"a": "x"}], [{"c": 1}]),
}  # fmt: skip
# Schemas with rules for additional members, and a value with such members.
OPEN = {
    "said so": ({"properties": {"a": TEXT}, "additionalProperties": True}, {"b": 1}),
    "a type for others": ({"properties": {"a": TEXT}, "additionalProperties": {"type": "integer"}}, {"b": 1}),
    "patterns": ({"properties": {"a": TEXT}, "patternProperties": {"^b": {"type": "integer"}}}, {"bc": 1}),
    "no names": ({"type": "object"}, {"b": 1}),
    "none at all": ({"type": "object", "properties": {}}, {"b": 1}),
    "two parts that name different ones": (
        {"properties": {"a": TEXT}, "anyOf": [{"properties": {"b": TEXT}, "required": ["b"]}]},
        {"a": "x", "b": "y"},
    ),
    "a part that is referred to": (
        {"$ref": "#/$defs/A", "properties": {"zip": TEXT}, "$defs": {"A": ADDRESS}}, {"city": "x", "zip": "1"},
    ),
    "more than are named": (
        {"properties": {"a": TEXT}, "required": ["a"], "minProperties": 2}, {"a": "x", "b": 1},
    ),
    "two parts that say of the same one what it has": (
        {"properties": {"at": {"properties": {"x": TEXT}}},
         "anyOf": [{"properties": {"at": {"properties": {"y": TEXT}}}, "required": ["at"]}]},
        {"at": {"x": "1", "y": "2"}},
    ),
    "whole values": ({"properties": {"a": TEXT}, "enum": [{"a": "x", "b": 1}]}, {"a": "x", "b": 1}),
}  # fmt: skip


def is_writable(schema, value):
    """Whether an answer under that schema may be this value."""
    verdict = CHECKER.check(GrammarCheckRequest(kind="json_schema", source=json.dumps(schema)))
    assert verdict.problem == ""
    return accepts(verdict.source, value)


@pytest.mark.parametrize("name", CLOSED)
def test_only_members_that_a_schema_names_are_written(name):
    schema, writable, extra = CLOSED[name]
    for value in (*writable, *extra):
        jsonschema.validate(value, schema)
    assert [value for value in writable if not is_writable(schema, value)] == []
    assert [value for value in extra if is_writable(schema, value)] == []


@pytest.mark.parametrize("name", OPEN)
def test_an_object_that_may_have_others_may_have_them(name):
    schema, value = OPEN[name]
    jsonschema.validate(value, schema)
    assert is_writable(schema, value)


def test_closing_lets_nothing_through_that_two_branches_would_refuse():
    """{"a": "x"} matches both, so it is not a valid oneOf; callers who need a guarantee are told there is none."""
    schema = {"oneOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]}
    assert CHECKER.check(GrammarCheckRequest(kind="json_schema", source=json.dumps(schema))).problem != ""


def test_parts_that_grow_without_end_are_left_as_they_are():
    names = {f"n{number}": TEXT for number in range(200)}
    parts = {f"P{number}": {"allOf": [{"$ref": f"#/$defs/P{number - 1}"}] * 2} for number in range(1, 30)}
    schema = {"$ref": "#/$defs/P29", "$defs": {"P0": {"properties": names}, **parts}}
    assert len(json.dumps(closed(schema))) < 200_000
    loop = {"$ref": "#/$defs/A", "$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}], "properties": {"a": TEXT}}}}
    assert "A" in closed(loop)["$defs"]


def test_only_the_part_that_fails_is_dropped():
    part = {"type": "object", "properties": {"a": {**LIST, "uniqueItems": True}, "b": {"enum": [1]}}}
    verdict, made = tried({"type": "array", "items": part}, strict=False)
    assert verdict.dropped == ("q[].a: uniqueItems",)
    assert made["items"]["properties"] == {"a": LIST, "b": {"enum": [1]}}


def test_a_schema_that_nothing_fits_is_refused_in_every_mode():
    for part in ({"not": {}}, {"enum": []}, False, {"type": "integer", "minimum": 5, "maximum": 1}):
        for strict in (True, False):
            assert tried(part, strict=strict)[0].problem


def test_names_of_members_are_not_taken_for_keywords():
    schema = {"type": "object", "properties": dict.fromkeys(("not", "title", "format", "uniqueItems"), TEXT)}
    assert tidy(schema) == schema
    assert CHECKER.check(GrammarCheckRequest(kind="json_schema", source=json.dumps(schema))).problem == ""


def test_the_shape_of_an_object_is_its_names():
    schema = {"properties": {"a": TEXT, "b": {"not": {}}}, "required": ["a", "x"], "not": {}}
    assert shape(schema) == {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}
    many = {"properties": {f"k{i}": TEXT for i in range(5000)}, "required": ["k7"]}
    assert shape(many) == {"type": "object", "properties": {"k7": {}}, "required": ["k7"]}
    assert shape({"properties": None}) == {"type": "object"}


def test_any_nonsense_is_taken_or_refused_but_never_raises():
    rng = random.Random(5)
    keys = (
        "type", "properties", "required", "items", "enum", "const", "pattern", "format", "minLength", "not", "if",
        "then", "maxItems", "anyOf", "oneOf", "allOf", "$ref", "$defs", "additionalProperties", "patternProperties",
        "propertyNames", "dependencies", "unevaluatedProperties", "unevaluatedItems", "minimum", "prefixItems",
        "minProperties", "contains", "minContains", "discriminator", "exclusiveMinimum", "description",
    )  # fmt: skip
    values = (
        True,
        None,
        -1,
        2.0,
        "string",
        "#/$defs/a",
        "(a",
        [],
        ["a"],
        [None],
        {},
        {"a": {}},
        {"a": None},
        [{"a": 1}],
    )

    def nonsense(depth=0):
        made = {
            key: nonsense(depth + 1) if depth < 3 and rng.random() < 0.35 else rng.choice(values)
            for key in rng.sample(keys, rng.randint(0, 5))
        }
        return {**made, "type": rng.choice(["string", "object", "array"])} if rng.random() < 0.5 else made

    tagged = BY_NAME["qwen-coder"]
    for _ in range(150):
        source = nonsense()
        for strict in (True, False):
            verdict = CHECKER.check(
                GrammarCheckRequest(kind="json_schema", source=json.dumps(source), strict=strict)
            )
            assert strict or not verdict.problem or "nsatisfiable" in verdict.problem, source
        for parameters in (tidy(source), shape(source)):
            if isinstance(parameters, dict):
                tool_grammar(tagged, [ToolDefinition(name="f", parameters=parameters)], parallel=True)


@pytest.mark.parametrize("count", [{"maxItems": 10**9}, {"maxLength": 10**12}, {"maxProperties": 10**7}])
@pytest.mark.parametrize("strict", [True, False])
def test_a_maximum_beyond_any_answer_is_no_reason_to_refuse(count, strict):
    schema = {"type": "object", "properties": {"a": {**LIST, **count}}, "required": ["a"]}
    verdict = CHECKER.check(
        GrammarCheckRequest(kind="json_schema", source=of_schema(schema, "p", strict=strict).source, strict=strict)
    )
    assert not verdict.problem
    assert not verdict.dropped


@pytest.mark.parametrize("count", [{"minItems": 10**6}, {"minItems": 2**63}, {"minProperties": 10**6}])
def test_a_minimum_beyond_any_answer_is_refused_only_if_it_must_be_enforced(count):
    schema = {"type": "object", "properties": {"a": {"type": "array", **count}}}
    with pytest.raises(ConstraintImpossible, match="is beyond 65536"):
        of_schema(schema, "p")
    verdict = CHECKER.check(
        GrammarCheckRequest(kind="json_schema", source=of_schema(schema, "p", strict=False).source, strict=False)
    )
    assert not verdict.problem


@pytest.mark.parametrize("place", ["root", "member", "element"])
def test_a_schema_that_names_members_but_no_type_is_an_object(place):
    named = {"properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    around = {
        "root": (named, lambda value: value),
        "member": ({"type": "object", "properties": {"m": named}, "required": ["m"]}, lambda value: {"m": value}),
        "element": ({"items": named}, lambda value: [value]),
    }
    schema, wrapped = around[place]
    verdict = CHECKER.check(GrammarCheckRequest(kind="json_schema", source=json.dumps(schema), strict=True))
    assert not verdict.problem
    assert accepts(verdict.source, wrapped({"a": True}))
    for other in (1, "x", None):
        assert not accepts(verdict.source, wrapped(other))


def test_a_branch_without_a_type_stays_as_it_is():
    """As an object, it would let a text fit the other branch alone, which the schema forbids."""
    schema = {"oneOf": [{"properties": {"a": {"type": "boolean"}}}, {"type": "string"}]}
    verdict = CHECKER.check(GrammarCheckRequest(kind="json_schema", source=json.dumps(schema), strict=True))
    assert verdict.problem


class _Slow:
    async def ask(self, _body):
        raise ChildFailed(timed_out=True, out_of_memory=False, exit_code=None)


def test_a_schema_that_takes_too_long_is_refused_only_if_it_must_be_enforced():
    checker = ConstraintChecker()
    checker.child = _Slow()
    schema = {"type": "object", "properties": {"a": TEXT}}
    made, notes = asyncio.run(checker.fit(of_schema(schema, "format", strict=False), "format"))
    assert (json.loads(made.source), notes) == (
        {"type": "object"},
        ("format: the schema as a whole is not enforced",),
    )
    with pytest.raises(ConstraintImpossible, match="takes more than"):
        asyncio.run(checker.fit(of_schema(schema, "format"), "format"))


@pytest.mark.parametrize(
    ("kind", "source", "problem"),
    [
        ("regex", "(", 'invalid regex "(": unclosed group'),
        ("lark", "start: /[/", 'invalid regex "[": unclosed character class'),
        ("regex", r"(a)\1", r'invalid regex "(a)\\1": backreferences are not supported'),
        ("gbnf", "root ::= root", "no text fits it"),
        ("lark", "start: x", 'at 1(8): unknown name: "x"'),
    ],
)
def test_the_reason_of_a_refused_grammar_is_told(kind, source, problem):
    assert CHECKER.check(GrammarCheckRequest(kind=kind, source=source)).problem == problem

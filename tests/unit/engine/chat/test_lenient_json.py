"""Models' JSON is repaired, and valid JSON stays unchanged."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chat.tools.lenient_json import LenientJson, repair
from engine.chat.tools.schema_types import typed
from tests.support.examples import examples

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=6), values, max_size=5), st.booleans(), st.sampled_from([None, 1]))
@settings(max_examples=examples(400), deadline=None)
def test_valid_json_keeps_its_value_and_ends_where_it_ends(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    parser = LenientJson()
    assert parser.feed(text + "{tail") == "{tail"
    out = "".join(fragment.text for fragment in parser.take())
    assert json.loads(out) == json.loads(text)


@pytest.mark.slow
@given(st.text(alphabet="{}[],:\"'\\u12dat =\n\ud83d<tf.-", max_size=40))
@settings(max_examples=examples(1500), deadline=None)
def test_anything_becomes_valid_json_however_it_is_cut(text):
    whole = repair("{" + text)
    json.loads(whole)
    parser = LenientJson()
    for char in "{" + text:
        if parser.done:
            break
        parser.feed(char)
    parser.finish()
    assert "".join(fragment.text for fragment in parser.take()) == whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': 'x', \"b\": [1, 2,], c: True,}", {"a": "x", "b": [1, 2], "c": True}),
        ('{"a": "he said "hi" there", "n": 1}', {"a": 'he said "hi" there', "n": 1}),
        ('{"a": "one\ntwo\tthree"}', {"a": "one\ntwo\tthree"}),
        ('{"path": "C:\\Users\\x"}', {"path": "C:\\Users\\x"}),
        ("{'a': 'it\\'s'}", {"a": "it's"}),
        ('{"a": [1, {"b": "c"', {"a": [1, {"b": "c"}]}),
        ('{"a": 1]}', {"a": 1}),
        ('{"a": None, "b": NaN, "c": .5, "d": +7}', {"a": None, "b": None, "c": 0.5, "d": 7}),
        ('{"a":, "b"= 2}', {"a": None, "b": 2}),
        ('{"a": "\\ud83d\\ude00 \\ud83d"}', {"a": "\U0001f600 \ufffd"}),
        ('{"a": tru', {"a": True}),
        ("", None),
    ],
)
def test_repairs(text, value):
    assert json.loads(repair(text)) == value


@pytest.mark.slow
def test_nesting_without_end_is_cut_not_crashed():
    assert repair("[" * 100_000).count("[") == 128


def test_members_are_named():
    parser = LenientJson()
    parser.feed('{"name": "f", "arguments": {"x": [1]}}')
    members: dict[str, str] = {}
    for member, text in parser.take():
        if member:
            members[member] = members.get(member, "") + text
    assert members == {"name": '"f"', "arguments": '{"x":[1]}'}


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("3", {"number", "string"}, "3"),
        ("true", {"number", "string"}, '"true"'),
        ("2.0", {"integer", "string"}, "2"),
        ("2.5", {"integer", "string"}, '"2.5"'),
        ("03", {"integer", "string"}, '"03"'),
    ],
)
def test_a_plain_parameter_gets_an_allowed_type_and_else_stays_text(text, types, value):
    assert typed(text, frozenset(types)) == value


@pytest.mark.parametrize(("levels", "inner"), [(127, 1), (128, None)])
def test_a_value_deeper_than_clients_read_is_null(levels, inner):
    value = json.loads(repair("[" * levels + '{"a": 1}' + "]" * levels))
    for _ in range(levels):
        value = value[0]
    assert value == ({"a": 1} if inner else None)

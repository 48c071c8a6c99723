"""Berkeley's function-calling cases: a fixed sample, JSON Schema types, and the rules of the set's own judge."""

import json
import zipfile

import pytest

from app.evals import bfcl
from app.evals.datasets import BFCL, NoDataset, wheel

AREA = {
    "name": "geometry.area",
    "description": "Area of a triangle.",
    "parameters": {
        "type": "dict",
        "properties": {
            "base": {"type": "float"},
            "height": {"type": "float"},
            "unit": {"type": "string", "default": "cm"},
            "points": {"type": "tuple", "items": {"type": "any"}},
        },
        "required": ["base", "height"],
    },
}
ANSWER = {"geometry.area": {"base": [10, 10.0], "height": [5], "unit": ["sq. cm", ""], "points": ["", [1, 2]]}}
RIGHT = ("geometry.area", {"base": 10, "height": 5})


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "bfcl.whl"
    with zipfile.ZipFile(path, "w") as made:
        for name in bfcl.CATEGORIES.values():
            rows = [
                {"id": f"{name}_{i}", "question": [[{"role": "user", "content": f"Q{i}"}]], "function": [AREA]}
                for i in range(10)
            ]
            wanted = [ANSWER, ANSWER] if name == "parallel" else [ANSWER]
            answers = [{"id": row["id"], "ground_truth": wanted} for row in rows]
            made.writestr(f"bfcl_eval/data/BFCL_v4_{name}.json", "\n".join(map(json.dumps, rows)))
            if name != "irrelevance":
                told = "\n".join(map(json.dumps, answers))
                made.writestr(f"bfcl_eval/data/possible_answer/BFCL_v4_{name}.json", told)
    return path


def first(archive, category):
    return next(case for case in bfcl.cases(archive, 1) if case.category == category)


def test_the_sample_is_fixed_and_spread(archive):
    names = [case.name for case in bfcl.cases(archive, 5)]
    assert names[:5] == [f"simple_python_{i}" for i in (0, 2, 4, 6, 8)]
    assert len(names) == 20
    assert names == [case.name for case in bfcl.cases(archive, 5)]
    assert len(bfcl.cases(archive, 100)) == 40


def test_types_are_spelled_as_json_schema(archive):
    parameters = first(archive, "simple").tools[0]["function"]["parameters"]
    assert parameters["type"] == "object"
    assert parameters["properties"]["base"] == {"type": "number"}
    assert parameters["properties"]["points"] == {"type": "array", "items": {}}
    assert parameters["required"] == ["base", "height"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"base": 10, "height": 5},
        {"base": 10.0, "height": 5, "unit": "SQ CM"},
        {"base": 10, "height": 5, "points": [1, 2]},
    ],
)
def test_right_calls_pass(archive, arguments):
    assert first(archive, "simple").check("", [("geometry.area", arguments)]) is None


@pytest.mark.parametrize(
    ("made", "word"),
    [
        ([], "0 calls"),
        ([RIGHT, RIGHT], "2 calls"),
        ([("area", {"base": 10, "height": 5})], "wanted geometry.area"),
        ([("geometry.area", {"base": 10})], "height is missing"),
        ([("geometry.area", {"base": 11, "height": 5})], "base is"),
        ([("geometry.area", {"base": True, "height": 5})], "base is"),
        ([("geometry.area", {"base": 10, "height": 5, "colour": 1})], "colour"),
        ([("geometry.area", {"base": 10, "height": 5, "unit": "inch"})], "unit is"),
        ([("geometry.area", {"base": 10, "height": 5, "points": [2, 1]})], "points is"),
    ],
)
def test_wrong_calls_fail_with_a_reason(archive, made, word):
    assert word in first(archive, "simple").check("", made)


def test_several_calls_may_come_in_any_order_and_none_may_be_missing(archive):
    case = first(archive, "parallel")
    assert case.check("", [RIGHT, RIGHT]) is None
    assert case.check("", [RIGHT]) is not None


def test_where_nothing_helps_no_call_is_right(archive):
    case = first(archive, "irrelevance")
    assert case.check("I cannot do that.", []) is None
    assert "geometry.area" in case.check("", [RIGHT])


def test_another_file_is_refused(archive):
    with pytest.raises(NoDataset, match=r"another file.*--data"):
        wheel(BFCL, archive)

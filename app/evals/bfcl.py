"""Test cases of the Berkeley Function Calling Leaderboard, with its own rules for correct answers.

Source of the rules: the checker of bfcl-eval 2026.3.23. Names and required parameters must be present, nothing
else, and every value must be one of the accepted ones. Texts are compared without case, spaces and , . / - _ * ^.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from app.evals.datasets import member
from app.evals.tool_calls.cases import Calls, Case, Category, Check

# File name of each category in the data set.
CATEGORIES: Final[dict[Category, str]] = {
    "simple": "simple_python",
    "multiple": "multiple",
    "parallel": "parallel",
    "irrelevance": "irrelevance",
}
PER_CATEGORY: Final = 25
_DATA: Final = "bfcl_eval/data"
_IGNORED: Final = re.compile(r"[ ,./\-_*^]")
_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array", "list": "array", "String": "string"}


def cases(wheel: Path, per_category: int = PER_CATEGORY) -> list[Case]:
    """A fixed sample at equal distances; the same for every run with the same `per_category`."""
    all_cases = []
    for category, name in CATEGORIES.items():
        rows = _lines(wheel, f"{_DATA}/BFCL_v4_{name}.json")
        answers = {}
        if category != "irrelevance":
            expected = _lines(wheel, f"{_DATA}/possible_answer/BFCL_v4_{name}.json")
            answers = {row["id"]: row["ground_truth"] for row in expected}
        chosen = min(per_category, len(rows))
        for i in range(chosen):
            row = rows[i * len(rows) // chosen]
            check = _nothing if category == "irrelevance" else _judge(row["function"], answers[row["id"]])
            all_cases.append(
                Case(
                    name=row["id"],
                    category=category,
                    messages=tuple(row["question"][0]),
                    tools=tuple(_tool(function) for function in row["function"]),
                    check=check,
                )
            )
    return all_cases


def _lines(wheel: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in member(wheel, name).splitlines() if line.strip()]


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    described = {**function, "parameters": _schema(function["parameters"])}
    return {"type": "function", "function": described}


def _schema(schema: Any) -> Any:
    """Convert the data set's type names to JSON Schema."""
    if isinstance(schema, list):
        return [_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {key: _schema(value) for key, value in schema.items() if key not in {"default", "optional"}}
    kind = schema.get("type")
    if isinstance(kind, str):
        converted.pop("type")
        if kind != "any":
            converted["type"] = _TYPES.get(kind, kind)
    return converted


def _nothing(text: str, called: Calls) -> str | None:
    del text
    return f"called {[name for name, _ in called]} though none of the functions helps" if called else None


def _judge(functions: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> Check:
    """Check for exactly the expected calls, in any order."""
    required = {f["name"]: set(f["parameters"].get("required", ())) for f in functions}

    def check(text: str, calls: Calls) -> str | None:
        del text
        if len(calls) != len(expected):
            return f"{len(calls)} calls, {len(expected)} wanted"
        unmatched = list(calls)
        for entry in expected:
            ((name, accepted),) = entry.items()
            problems = [_problem(call, name, accepted, required.get(name, set())) for call in unmatched]
            if None not in problems:
                return next((p for p in problems if p), f"no call of {name}")
            del unmatched[problems.index(None)]
        return None

    return check


def _problem(
    call: tuple[str, Mapping[str, Any]], name: str, accepted: Mapping[str, list[Any]], required: set[str]
) -> str | None:
    """Reason why a call does not match the expected one; None if it matches."""
    called, arguments = call
    if called != name:
        return f"called {called}, wanted {name}"
    missing = sorted(required - arguments.keys())
    if missing:
        return f"{name}: {missing[0]} is missing"
    for key, value in arguments.items():
        if key not in accepted:
            return f"{name}: {key} is not a parameter"
        if not any(_same(value, allowed) for allowed in accepted[key]):
            return f"{name}: {key} is {str(value)[:60]!r}"
    left_out = [key for key, values in accepted.items() if key not in arguments and "" not in values]
    return f"{name}: {left_out[0]} is missing" if left_out else None


def _same(value: Any, allowed: Any) -> bool:
    if isinstance(allowed, str):
        return isinstance(value, str) and _plain(value) == _plain(allowed)
    if isinstance(allowed, bool) or isinstance(value, bool):
        return value is allowed
    if isinstance(allowed, list):
        if not isinstance(value, list) or len(value) != len(allowed):
            return False
        return all(_same(a, b) for a, b in zip(value, allowed, strict=True))
    if isinstance(allowed, dict):
        return _same_entries(value, allowed)
    return bool(value == allowed)


def _same_entries(value: Any, allowed: Mapping[str, Any]) -> bool:
    """Compare entries; each lists its accepted values, like a call's parameters."""
    if not isinstance(value, dict) or any(key not in allowed for key in value):
        return False
    return all(
        any(_same(value[key], item) for item in options) if key in value else "" in options
        for key, options in allowed.items()
    )


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')

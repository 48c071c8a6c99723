"""Every number of every request, at and beyond its limits: a 400 that names the field, never a 5xx."""

import itertools
import json
import math

import httpx2
import pytest

VALUES = (-1, 0, 2**31, 2**63, 2**200, 1e308, math.nan, math.inf, "x", "1", None, 0.5, True, [], {})
CHAT = {"messages": [{"role": "user", "content": "x"}]}
# The minimal body of each route; the scripted model generates four tokens.
ROUTES = {
    "/v1/chat/completions": {**CHAT, "max_tokens": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 20},
    "/v1/messages": {**CHAT, "max_tokens": 2},
    "/v1/messages/count_tokens": CHAT,
    "/v1/embeddings": {"input": "x"},
    "/v1/rerank": {"query": "q", "documents": ["a"]},
    "/detokenize": {"tokens": [1]},
    "/api/chat": {**CHAT, "stream": False},
    "/api/generate": {"prompt": "x", "stream": False},
    "/api/embed": {"input": "x"},
}


def branches(schema):
    yield schema
    for inner in schema.get("anyOf", ()):
        yield from branches(inner)


def numbers(schema, path=()):
    """Paths of the fields that take a number, with the number's schema; list items as index 0."""
    for branch in branches(schema):
        if branch.get("type") in ("integer", "number"):
            yield path, branch
        for name, inner in branch.get("properties", {}).items():
            yield from numbers(inner, (*path, name))
        if isinstance(branch.get("items"), dict) and path:
            yield from numbers(branch["items"], (*path, 0))


def placed(body, path, value):
    """A copy of the body with the value at the path."""
    copy = json.loads(json.dumps(body))
    at = copy
    for here, following in itertools.pairwise(path):
        at = at.setdefault(here, [] if following == 0 else {}) if isinstance(at, dict) else at
        if isinstance(at, str):
            return None
    if isinstance(at, list):
        if at and not isinstance(at[0], int | float):
            return None
        at[:] = [value]
    else:
        at[path[-1]] = value
    return copy


def within(value, schema):
    """Return whether the value is a number inside the documented limits."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return False
    if schema["type"] == "integer" and not isinstance(value, int):
        return False
    return (
        schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf)
        and value > schema.get("exclusiveMinimum", -math.inf)
        and value < schema.get("exclusiveMaximum", math.inf)
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("route", ROUTES)
def test_every_number_at_every_value(qwen, route):
    base = {"model": "spark", **ROUTES[route]}
    tried = refused = 0
    with httpx2.Client(base_url=qwen.url, timeout=60) as client:
        page = client.get("/openapi.json").json()
        schema = page["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]
        fields = {}
        for path, limits in numbers(schema):
            fields.setdefault(path, []).append(limits)
        for path, choices in fields.items():
            for value in VALUES:
                allowed = any(within(value, limits) for limits in choices)
                if allowed and value > 64:
                    continue  # allowed, but this much would only take time
                body = placed(base, path, value)
                if body is None:
                    continue
                answer = client.post(route, content=json.dumps(body), headers={"content-type": "application/json"})
                where = (path, value, answer.text[:300])
                assert answer.status_code < 500, where
                tried += 1
                if isinstance(value, int | float) and not isinstance(value, bool) and not allowed:
                    assert answer.status_code == 400, where
                    refused += 1
                    if math.isfinite(value):
                        error = answer.json()["error"]
                        told = error if isinstance(error, str) else f"{error.get('param')} {error['message']}"
                        assert str(path[0]) in told, where
    if route != "/v1/messages/count_tokens":
        assert tried >= 10
        assert refused >= 3

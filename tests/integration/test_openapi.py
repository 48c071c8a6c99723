"""The OpenAPI page: complete, and every operation answers generated nonsense with its own 4xx, never a 5xx."""

import json
import random

import httpx2
import pytest
from scripted import TOKEN

METHODS = ("get", "post", "put", "delete")
EXPECTED = {
    "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank",
    "/v1/fim/completions", "/infill", "/tokenize", "/detokenize", "/v1/messages", "/v1/messages/count_tokens",
    "/api/version", "/api/tags", "/api/show", "/api/ps", "/api/chat", "/api/generate", "/api/embed",
    "/api/embeddings", "/api/pull", "/api/create", "/api/copy", "/api/delete", "/api/v0/models",
    "/tessera/v1/loaded", "/tessera/v1/stats", "/tessera/v1/keys", "/tessera/v1/aliases", "/health", "/metrics",
}  # fmt: skip
# These would reach for the network, a device or long work; their bodies are checked by their own tests.
SKIPPED = (
    "/tessera/v1/hub", "/tessera/v1/machine", "/tessera/v1/stats", "/tessera/v1/jobs", "/tessera/v1/quantize",
    "/tessera/v1/models", "/tessera/v1/trash", "/api/pull", "/tessera/v1/devices", "/tessera/v1/fit",
)  # fmt: skip
VALUES = [
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    1e300,
    "",
    "x",
    "\u0000",
    "\ud800",
    "A" * 5000,
    [],
    [None],
    [[]],
    {},
    {"a": 1},
]


def operations(page):
    return [(m, p, op) for p, item in page["paths"].items() for m, op in item.items() if m in METHODS]


@pytest.fixture(scope="module")
def page(_qwen):
    return httpx2.get(f"{_qwen.url}/openapi.json").json()


def test_the_page_has_every_route_with_words_and_bodies(page):
    assert set(page["paths"]) >= EXPECTED
    for method, path, operation in operations(page):
        assert operation.get("description") or operation.get("summary"), path
        if method == "post" and path.startswith("/v1/"):
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            assert schema["properties"], path


def bodies(schema, seed):
    """A body with every required field odd, one field odd at a time, and no body of an object at all."""
    generator = random.Random(seed)
    properties = schema.get("properties", {})
    for name in properties:
        for value in generator.sample(VALUES, 2):
            yield {**dict.fromkeys(schema.get("required", ()), "x"), "model": "spark", name: value}
    yield from ([], "x", 5, None, {})


@pytest.mark.slow
def test_generated_bodies_are_never_an_internal_error(qwen, page):
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    tried = 0
    with httpx2.Client(base_url=qwen.url, timeout=60) as client:
        for method, path, operation in operations(page):
            if path.startswith(SKIPPED) or "requestBody" not in operation:
                continue
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            for body in bodies(schema, path):
                where = path.split("{", maxsplit=1)[0] + ("x" if "{" in path else "")
                answer = client.request(method.upper(), where, content=json.dumps(body), headers=headers)
                assert answer.status_code < 500, (path, body, answer.text)
                if answer.status_code >= 400:
                    assert "error" in answer.json(), (path, body)
                tried += 1
    assert tried > 200

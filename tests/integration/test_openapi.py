"""The OpenAPI page is complete, and every operation answers generated nonsense with its own 4xx, never a 5xx."""

import json
import random

import httpx2
import msgspec
import pytest

from engine.api.protocols.routes import ANSWERS, AnthropicError, Error, OllamaError
from tests.support.fakes.scripted import TOKEN

METHODS = ("get", "post", "put", "delete")
EXPECTED = {
    "/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank",
    "/v1/fim/completions", "/infill", "/tokenize", "/detokenize", "/v1/messages", "/v1/messages/count_tokens",
    "/api/version", "/api/tags", "/api/show", "/api/ps", "/api/chat", "/api/generate", "/api/embed",
    "/api/embeddings", "/api/pull", "/api/create", "/api/copy", "/api/delete", "/api/v0/models",
    "/tessera/v1/loaded", "/tessera/v1/stats", "/tessera/v1/keys", "/tessera/v1/aliases", "/health", "/metrics",
}  # fmt: skip
# Routes that use the network, a device or long work; their own tests check their bodies.
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


# Routes that take a file.
FORMS = {"/v1/audio/transcriptions", "/v1/files"}


def operations(page):
    return [(m, p, op) for p, item in page["paths"].items() for m, op in item.items() if m in METHODS]


@pytest.fixture(scope="module")
def page(_qwen):
    return httpx2.get(f"{_qwen.url}/openapi.json", timeout=60).json()


def test_the_page_has_every_route_with_words_and_bodies(page):
    assert set(page["paths"]) >= EXPECTED
    for method, path, operation in operations(page):
        assert operation.get("description") or operation.get("summary"), path
        if method == "post" and path.startswith("/v1/") and not path.endswith("/cancel"):
            kind = "multipart/form-data" if path in FORMS else "application/json"
            schema = operation["requestBody"]["content"][kind]["schema"]
            assert schema["properties"], path


def bodies(schema, seed):
    """Bodies with one odd field each and odd required fields, and bodies that are not objects."""
    generator = random.Random(seed)
    properties = schema.get("properties", {})
    for name in properties:
        for value in generator.sample(VALUES, 2):
            yield {**dict.fromkeys(schema.get("required", ()), "x"), "model": "spark", name: value}
    yield from ([], "x", 5, None, {})


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_generated_bodies_are_never_an_internal_error(qwen, page):
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    tried = 0
    with httpx2.Client(base_url=qwen.url, timeout=60) as client:
        for method, path, operation in operations(page):
            if path.startswith(SKIPPED) or path in FORMS or "requestBody" not in operation:
                continue
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            if "$ref" in schema:
                schema = page["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            for body in bodies(schema, path):
                where = path.split("{", maxsplit=1)[0] + ("x" if "{" in path else "")
                answer = client.request(method.upper(), where, content=json.dumps(body), headers=headers)
                assert answer.status_code < 500, (path, body, answer.text)
                if answer.status_code >= 400:
                    assert "error" in answer.json(), (path, body)
                tried += 1
    assert tried > 200


SAID = [{"role": "user", "content": "Hi"}]
SAMPLES = {
    ("get", "/v1/models"): None,
    ("get", "/v1/models/{model}"): None,
    ("post", "/v1/chat/completions"): {"model": "spark", "messages": SAID},
    ("post", "/v1/completions"): {"model": "spark", "prompt": "Hi"},
    ("post", "/tokenize"): {"model": "spark", "content": "Hi"},
    ("post", "/detokenize"): {"model": "spark", "tokens": [1, 2]},
    ("get", "/api/v0/models"): None,
    ("get", "/api/v0/models/{model}"): None,
    ("post", "/v1/responses"): {"model": "spark", "input": "Hi"},
    ("post", "/v1/messages"): {"model": "spark", "messages": SAID, "max_tokens": 9},
    ("post", "/v1/messages/count_tokens"): {"model": "spark", "messages": SAID},
    ("post", "/api/chat"): {"model": "spark", "messages": SAID, "stream": False},
    ("post", "/api/generate"): {"model": "spark", "prompt": "Hi", "stream": False},
    ("get", "/api/version"): None,
    ("get", "/api/tags"): None,
    ("get", "/api/ps"): None,
    ("post", "/api/show"): {"model": "spark"},
    ("get", "/health"): None,
}


@pytest.mark.parametrize("route", SAMPLES, ids=" ".join)
def test_a_route_of_another_protocol_answers_as_its_page_says(qwen, route):
    method, path = route
    qwen.say("Hello", " there")
    with httpx2.Client(base_url=qwen.url, timeout=60) as client:
        body = SAMPLES[route]
        answer = client.request(method.upper(), path.replace("{model}", "spark"), json=body)
        assert answer.status_code == 200, answer.text
        msgspec.json.decode(answer.content, type=ANSWERS[route])


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/chat/completions", Error), ("/v1/messages", AnthropicError), ("/api/chat", OllamaError)],
)
def test_a_refusal_has_the_shape_of_its_protocol(qwen, path, kind):
    with httpx2.Client(base_url=qwen.url) as client:
        answer = client.post(path, json={"model": 3})
        assert answer.status_code == 400
        msgspec.json.decode(answer.content, type=kind)

"""No field of a request is ignored silently, proven field by field.

Every key of the examples is removed, one at a time, at every depth. Then the runner's request or the response must
change, or the key was reported as without effect, or the request is refused. Every object also gets an unknown key,
which must be reported or refused. Every declared field and every key of a declared shape must be in an example, so
that a declared but unused field fails here.
"""

import copy
import json
import re
import typing

import httpx2
import pytest
from pydantic import BaseModel

import engine.server.all_routes  # noqa: F401 - every body is known
from engine.server.anthropic.routes import CountRequest, MessagesRequest
from engine.server.body import Body
from engine.server.llama_server.fim import FimCompletionRequest, InfillRequest
from engine.server.llama_server.routes import DetokenizeRequest, LookupRequest, TokenizeRequest
from engine.server.llama_server.schemas import NativeRequest
from engine.server.ollama.schemas import ChatBody, EmbedBody, GenerateBody, OldEmbedBody, ShowBody
from engine.server.openai.embeddings import EmbeddingRequest, NativeEmbeddingRequest, RerankRequest
from engine.server.openai.schemas import ChatRequest, CompletionRequest
from engine.server.responses.compaction import CompactRequest
from engine.server.responses.schemas import ResponsesRequest
from tests.support.contract_examples import EXAMPLES, FREE, NO_EFFECT
from tests.support.fakes.scripted import TOKEN, ScriptedServer
from tests.support.servers import wait_for

SCHEMAS = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/responses/compact": CompactRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/rerank": RerankRequest,
    "/v1/fim/completions": FimCompletionRequest,
    "/infill": InfillRequest,
    "/completion": NativeRequest,
    "/embedding": NativeEmbeddingRequest,
    "/v1/streams/lookup": LookupRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/api/show": ShowBody,
    "/api/chat": ChatBody,
    "/api/generate": GenerateBody,
    "/api/embed": EmbedBody,
    "/api/embeddings": OldEmbedBody,
}
# Fields that differ between responses to the same request, and fields that only repeat the request.
PASSING = re.compile(
    r"id|.*_id|created(_at)?|completed_at|timings|.*duration|x_.*|system_fingerprint|expires_at|generation_settings"
)
ECHOED = set(ResponsesRequest.model_fields) - {"input"} | {
    "output_text",
    "prompt_cache_key",
    "safety_identifier",
    "user",
}
UNKNOWN = "zz_unknown"
MARKS = {
    "pre": "<|fim_prefix|>", "suf": "<|fim_suffix|>", "mid": "<|fim_middle|>", "rep": "<|repo_name|>",
    "sep": "<|file_sep|>",
}  # fmt: skip


@pytest.fixture(scope="module")
def thinker(_qwen, tmp_path_factory):
    """The shared server with a public document collection, `Sea`."""
    _qwen.forget()
    place = tmp_path_factory.mktemp("sea")
    for number, word in enumerate(("Tides", "Herring", "Lighthouse")):
        (place / f"{number}.md").write_text(
            f"# {word}\n\nHigh water comes every twelve hours. {word} of the sea.\n"
        )
    with httpx2.Client(base_url=_qwen.url, headers={"authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
        wanted = {"name": "Sea", "sources": [str(place)], "open": True, "follow": False, "embedding_model": "none"}
        made = http.post("/tessera/v1/collections", json=wanted)
        assert made.status_code == 201, made.text
        path = f"/tessera/v1/collections/{made.json()['id']}"
        wait_for(lambda: http.get(path).json()["state"] == "ready", 60, "reading")
        yield _qwen
        http.delete(path)


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    """A model with fill-in-the-middle support."""
    (home := tmp_path_factory.mktemp("coder")).mkdir(exist_ok=True)
    server = ScriptedServer(home, fim=MARKS)
    yield server
    server.stop()


def settled(value, *, echoes):
    """A response without volatile fields."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not PASSING.fullmatch(k) and not (echoes and k in ECHOED)}
        return {k: settled(v, echoes=False) for k, v in kept.items()}
    return [settled(v, echoes=False) for v in value] if isinstance(value, list) else value


def seen(server, http, path, body):
    """Status, ignored fields, and all observable effects of a request."""
    marks = [(server.folder / name, 0) for name in ("requests.jsonl", "others.jsonl")]
    marks = [(file, file.stat().st_size if file.exists() else 0) for file, _ in marks]
    for model in server.state.pool.loaded:
        model.ttl_s = 77.0
    answer = http.post(path, json=body)
    told = answer.text
    if body.get("background") and answer.status_code == 200:  # the runner is called after the response
        made = f"{path}/{answer.json()['id']}"
        wait_for(lambda: http.get(made).json()["status"] not in {"queued", "in_progress"}, 60, "the answer")
    if answer.headers.get("content-type", "").startswith("application/json"):
        told = settled(answer.json(), echoes=path == "/v1/responses")
    else:
        told = re.sub(
            r'"(id|created|created_at|completed_at|expires_at|item_id|timings)": ?("[^"]*"|[\d.]+|\{[^}]*\})',
            "",
            told,
        )
        told = re.sub(r"(resp|msg|rs|chatcmpl|cmpl)[_-]\w+|fp_\w+|\d+\.\d+", "", told)
    asked = []
    for file, size in marks:
        if file.exists():
            with file.open() as lines:
                lines.seek(size)
                asked += re.sub(r'"choice_of":"[^"]*"', '"choice_of":""', lines.read()).splitlines()  # an id
    kept = None
    if path == "/v1/responses" and answer.status_code == 200 and not body.get("stream"):
        found = http.get(f"/v1/responses/{answer.json()['id']}")
        kept = (found.status_code, found.json().get("metadata"))
    ttl = [model.ttl_s for model in server.state.pool.loaded]
    ignored = answer.headers.get("x-tessera-ignored", "").split(", ")
    return answer.status_code, ignored, (told, sorted(asked), kept, ttl)


def is_free(route, path):
    return any(re.fullmatch(pattern, f"{route} {dotted(path)}") for pattern in FREE)


def paths_of(route, value, path=()):
    """Every key at every depth, except in free-form JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            if not is_free(route, (*path, key)):
                yield from paths_of(route, inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from paths_of(route, inner, (*path, index))


def objects_of(route, value, path=()):
    """The path of every object that is not free-form JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        where = (*path, key)
        if not is_free(route, where):
            if isinstance(item, dict):
                yield where
            yield from objects_of(route, item, where)


def at(value, path):
    for part in path:
        value = value[part]
    return value


def dotted(path):
    told = ""
    for part in path:
        told += f"[{part}]" if isinstance(part, int) else f".{part}" if told else part
    return told


def is_told(name, ignored):
    """Return whether the header names the field, its parent, or its position in all list items."""
    places = {re.sub(r"\[\d+\]", "[]", name), name}
    outer = tuple(f"{entry}{mark}" for entry in ignored if entry for mark in ".[")
    return bool(places & set(ignored)) or any(place.startswith(outer) for place in places if outer)


CASES = [(path, index) for path, bodies in EXAMPLES.items() for index in range(len(bodies))]
proven = set()  # a key with the same value is tried in only one example


@pytest.mark.parametrize(("path", "index"), CASES, ids=[f"{p}-{i}" for p, i in CASES])
def test_every_key_counts_or_is_told(thinker, coder, path, index):
    server = coder if "fim" in path or path == "/infill" else thinker
    body = EXAMPLES[path][index]
    silent = []
    if body.keys() & {"t_max_predict_ms", "n_indent"}:  # limits of completions of several lines
        for _ in range(99):
            server.say(*["fake\n"] * 4)
    with httpx2.Client(base_url=server.url, timeout=60) as http:
        load = f"/tessera/v1/models/{body['model']}/load" if "model" in body else ""
        if load:  # idle work, which one example is, loads no model
            http.post(load, json={}, headers={"authorization": f"Bearer {TOKEN}"}).raise_for_status()
        seen(server, http, path, body)
        status, ignored, base = seen(server, http, path, body)
        assert status == 200, base
        assert seen(server, http, path, body)[2] == base, "the same request is seen differently"
        for where in paths_of(path, body):
            name = dotted(where)
            known = (path, re.sub(r"\[\d+\]", "[]", name), json.dumps(at(body, where)))
            if known in proven:
                continue
            changed = copy.deepcopy(body)
            del at(changed, where[:-1])[where[-1]]
            code, _, other = seen(server, http, path, changed)
            excused = any(re.fullmatch(pattern, f"{path} {name}") for pattern in NO_EFFECT)
            if code == 200 and other == base and not is_told(name, ignored) and not excused:
                silent.append(name)
            else:
                proven.add(known)
        changed, places = copy.deepcopy(body), [(), *objects_of(path, body)]
        for where in places:
            at(changed, where)[UNKNOWN] = "x"
        code, told, _ = seen(server, http, path, changed)
        assert code < 500
        if code == 200:
            silent += [n for where in places if not is_told(n := dotted((*where, UNKNOWN)), told)]
    server.forget()
    assert silent == []


def bodies_in(annotation):
    """Body types inside a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from bodies_in(inner)


def declared(model, path=()):
    """Every field of a schema and its nested schemas, and every key of its shapes."""
    for name, field in model.model_fields.items():
        alias = getattr(field.validation_alias, "choices", [field.alias or name])
        shown = str(alias[0])
        yield (*path, shown)
        if issubclass(model, Body) and name in model.shapes:
            yield from shape_keys(model.shapes[name], (*path, shown))
        for inner in bodies_in(field.annotation):
            yield from declared(inner, (*path, shown))


def shape_keys(shape, path):
    """Every key that is read from free-form JSON; for a shape by type, of all its kinds."""
    if not isinstance(shape, dict):
        return
    by_type = type(shape).__name__ == "ByType"
    for key, inner in shape.items():
        if not by_type:
            yield (*path, key)
        yield from shape_keys(inner, path if by_type else (*path, key))


@pytest.mark.parametrize("path", SCHEMAS, ids=list(SCHEMAS))
def test_every_declared_field_stands_in_an_example(path):
    shown = {
        tuple(p for p in where if isinstance(p, str)) for body in EXAMPLES[path] for where in paths_of(path, body)
    }
    missing = {".".join(where) for where in declared(SCHEMAS[path])} - {".".join(where) for where in shown}
    missing = {name for name in missing if not any(re.fullmatch(p, f"{path} {name}") for p in NO_EFFECT)}
    assert missing == set()


# Bodies that other tests cover, because their routes change stored state.
ELSEWHERE = {
    "ollama.schemas.Named": "delete: test_ollama", "ollama.schemas.PullBody": "test_ollama",
    "ollama.schemas.CopyBody": "test_ollama", "ollama.schemas.CreateBody": "test_ollama",
    "llama_server.schemas.TemplateRequest": "a ChatRequest, of which the prompt is told: test_llama_server_routes",
    "openai.audio.TranscriptionRequest": "a form: test_speech",
    "openai.vector_store_schemas.StoreRequest": "test_vector_stores",
    "openai.vector_store_schemas.FileRequest": "test_vector_stores",
    "openai.vector_store_schemas.BatchRequest": "test_vector_stores",
    "openai.vector_store_schemas.StoreSearch": "test_vector_stores",
    "openai.vector_store_schemas.FileSearch": "a tool of a request, whose keys the examples have: test_file_search",
    "responses.conversations.CreateBody": "test_conversations",
    "responses.conversations.UpdateBody": "test_conversations",
    "responses.conversations.AddBody": "test_conversations",
}  # fmt: skip


def test_every_body_of_every_protocol_is_walked():
    """A new body fails here until it has examples, or an entry in ELSEWHERE."""

    def kinds(kind):
        for inner in kind.__subclasses__():
            yield inner
            yield from kinds(inner)

    def within(kind):
        yield kind
        for field in kind.model_fields.values():
            for inner in bodies_in(field.annotation):
                yield from within(inner)

    full = {f"{kind.__module__.removeprefix('engine.server.')}.{kind.__name__}": kind for kind in kinds(Body)}
    named = [full[name] for name in ELSEWHERE]
    walked = {inner for kind in (*SCHEMAS.values(), *named) for inner in within(kind)}
    walked |= {base for kind in walked for base in kind.__mro__}
    assert sorted(kind.__name__ for kind in set(kinds(Body)) - walked) == []


def test_the_count(record_property, capsys):
    """Prints the number of proven keys; asserts that every route with a body has a schema here."""
    fields = sum(len(list(paths_of(path, body))) for path, bodies in EXAMPLES.items() for body in bodies)
    with capsys.disabled():
        print(f"\nrequest contract: {fields} keys in {len(CASES)} requests of {len(EXAMPLES)} routes, none silent")
    assert fields > 300
    assert set(SCHEMAS) == set(EXAMPLES)
    assert json.dumps(EXAMPLES)

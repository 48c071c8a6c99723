"""docs/api lists what happens to each parameter; this test sends each example."""

import importlib
import json
import re
from pathlib import Path

import httpx2
import pytest

from engine.server.openai.schemas import ChatRequest
from engine.server.responses.schemas import ResponsesRequest
from tests.support.fakes.scripted import TOKEN, ScriptedServer

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (\w+) \| `(.*)` \| (supported|rejected|ignored) \|$", re.MULTILINE)


def table(page):
    text = (ROOT / "docs" / "api" / page).read_text("utf-8")
    return [(name, json.loads(example), fate) for name, example, fate in ROW.findall(text)]


CHAT, RESPONSES = table("chat-completions.md"), table("responses.md")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = ScriptedServer(tmp_path_factory.mktemp("tables") / "home")
    yield running
    running.stop()


@pytest.mark.parametrize(
    ("rows", "module", "declared", "documented"),
    [
        (CHAT, "chat.completion_create_params", "CompletionCreateParamsBase", ChatRequest),
        (RESPONSES, "responses.response_create_params", "ResponseCreateParamsBase", ResponsesRequest),
    ],
    ids=["chat", "responses"],
)
def test_the_table_has_every_parameter_of_the_official_client_and_of_ours(rows, module, declared, documented):
    names = {name for name, _, _ in rows}
    official = getattr(importlib.import_module(f"openai.types.{module}"), declared)  # takes 1 s
    assert set(official.__annotations__) - names == set()
    assert set(documented.model_fields) - names == set()


@pytest.fixture(scope="module")
def existing(server, tmp_path_factory):
    """The objects that replace the placeholders of the tables."""
    folder = tmp_path_factory.mktemp("papers")
    (folder / "lease.txt").write_text("The rent is due on the fifth day of each month.\n" * 3)
    mine = {"authorization": f"Bearer {TOKEN}"}
    body = {"name": "papers", "sources": [str(folder)], "open": True}
    made = httpx2.post(f"{server.url}/tessera/v1/collections", json=body, headers=mine)
    assert made.status_code < 300, made.text
    talk = httpx2.post(f"{server.url}/v1/conversations", json={}).json()
    said = httpx2.post(f"{server.url}/v1/responses", json={"model": "spark", "input": "Hi"}).json()
    return {"COLLECTION": "papers", "CONVERSATION": talk["id"], "RESPONSE": said["id"]}


def placed(example, existing):
    return existing.get(example, example) if isinstance(example, str) else example


def send(server, route, base, name, example):
    body = {**base, name: example}
    if name == "top_logprobs" and "messages" in base:
        body["logprobs"] = True
    if name == "stream_options":
        body["stream"] = True
    return httpx2.post(f"{server.url}{route}", json=body)


def check(answer, name, fate):
    ignored = answer.headers.get("x-tessera-ignored", "").split(", ")
    if fate == "rejected":
        assert answer.status_code in {400, 404}, answer.text
        assert name in (answer.json()["error"]["param"] or "")
    else:
        assert answer.status_code == 200, answer.text
        assert (name in ignored) == (fate == "ignored")


@pytest.mark.parametrize(("name", "example", "fate"), CHAT, ids=[f"{n}-{f}" for n, _, f in CHAT])
def test_chat_parameters(server, existing, name, example, fate):
    base = {"model": "spark", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    check(send(server, "/v1/chat/completions", base, name, placed(example, existing)), name, fate)


@pytest.mark.parametrize(("name", "example", "fate"), RESPONSES, ids=[f"{n}-{f}" for n, _, f in RESPONSES])
def test_responses_parameters(server, existing, name, example, fate):
    base = {"model": "spark", "input": "Hi", "max_output_tokens": 3}
    check(send(server, "/v1/responses", base, name, placed(example, existing)), name, fate)


@pytest.mark.parametrize(
    ("name", "example", "where"),
    [
        ("temperature", 0.25, "temperature"),
        ("top_p", 0.75, "top_p"),
        ("top_k", 17, "top_k"),
        ("min_p", 0.125, "min_p"),
        ("typical_p", 0.5, "typical_p"),
        ("top_n_sigma", 1.5, "top_n_sigma"),
        ("repeat_penalty", 1.25, "repeat_penalty"),
        ("repeat_last_n", 33, "repeat_last_n"),
        ("presence_penalty", 0.5, "presence_penalty"),
        ("frequency_penalty", 0.25, "frequency_penalty"),
        ("seed", 12345, "seed"),
        ("xtc_probability", 0.25, "xtc_probability"),
        ("dry_multiplier", 0.5, "dry_multiplier"),
        ("mirostat", 2, "mirostat"),
        ("dynatemp_range", 0.5, "dynatemp_range"),
        ("adaptive_target", 0.25, "adaptive_target"),
        ("samplers", ["penalties", "top_k"], "order"),
    ],
)
def test_supported_sampling_reaches_the_runner(server, name, example, where):
    base = {"model": "spark", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    send(server, "/v1/chat/completions", base, name, example)
    assert server.asked()[-1]["sampling"][where] == example


def test_a_top_k_of_minus_one_means_all_tokens(server):
    base = {"model": "spark", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    send(server, "/v1/chat/completions", base, "top_k", -1)
    assert server.asked()[-1]["sampling"].get("top_k", 0) == 0  # 0 is the default and left out

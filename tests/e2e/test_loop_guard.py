"""The loop guard over HTTP: only on request, reported next to the finish reason."""

import json

import httpx2
import pytest

ENDLESS = {"model": "spark", "temperature": 0, "ignore_eos": True, "max_tokens": 700}
LOOP = {"response_format": {"type": "regex", "regex": "(You are not alone in the house[.] )+"}}
QUESTION = [{"role": "user", "content": "Tell me a story."}]


def chat(server, **options):
    body = {**ENDLESS, **LOOP, "messages": QUESTION, **options}
    return httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def test_without_being_asked_for_nothing_is_cut(server):
    answer = chat(server).json()
    assert answer["usage"]["completion_tokens"] == ENDLESS["max_tokens"]
    assert "runaway" not in answer.get("tessera", {})


def test_a_loop_is_cut_and_told(server):
    answer = chat(server, loop_guard=True).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] < ENDLESS["max_tokens"]
    (found,) = answer["tessera"]["runaway"]
    assert (found["choice"], found["kind"]) == (0, "loop")
    assert found["times"] >= 3
    assert found["passage"].split()[0] in answer["choices"][0]["message"]["content"]


def test_a_stream_tells_it_with_its_last_chunk(server):
    answer = chat(server, loop_guard=True, stream=True)
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    told = [chunk for chunk in chunks if "runaway" in chunk.get("tessera", {})]
    assert [chunk["choices"][0]["finish_reason"] for chunk in told] == ["length"]
    assert told[0]["tessera"]["runaway"][0]["kind"] == "loop"


def test_text_completions_have_it_too(server):
    body = {**ENDLESS, **LOOP, "prompt": "Once upon a time", "loop_guard": True}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    assert answer["tessera"]["runaway"][0]["kind"] == "loop"


def test_noise_is_cut(server):
    uncut = {"temperature": 5, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 1}
    answer = chat(server, loop_guard=True, response_format=None, **uncut).json()
    (found,) = answer["tessera"]["runaway"]
    assert found["kind"] == "noise"
    assert found["nats"] == pytest.approx(10, abs=4)
    assert answer["usage"]["completion_tokens"] <= 300

"""Completions as evaluation programs use them, on a real model: the prompt's own log probabilities."""

import json

import httpx2
import pytest


def post(server, path, **body):
    return httpx2.post(f"{server.url}{path}", json={"model": "spark", "temperature": 0, **body}, timeout=60)


def complete(server, **body):
    answer = post(server, "/v1/completions", **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_echo_with_logprobs_tells_the_prompts_tokens(server):
    prompt = "Once upon a time there was a little girl who lived in a house near the wood. " * 3
    answer = complete(server, prompt=prompt, echo=True, logprobs=2, max_tokens=1, ignore_eos=True)
    [choice] = answer["choices"]
    told = choice["logprobs"]
    tokens, values, offsets = told["tokens"], told["token_logprobs"], told["text_offset"]
    prompt_tokens = answer["usage"]["prompt_tokens"]
    assert len(tokens) == len(values) == len(offsets) == len(told["top_logprobs"]) == prompt_tokens + 1
    assert values[0] is None
    assert told["top_logprobs"][0] is None
    assert all(value <= 0 for value in values[1:])
    assert len(set(values[1:])) > 10
    for token, value, top in zip(tokens[1:], values[1:], told["top_logprobs"][1:], strict=True):
        assert top[token] == value  # the prompt's own token, even where two others are likelier
        assert len(top) == 2 + (sorted(top.values(), reverse=True).index(value) > 1)
    for token, offset in zip(tokens[1:], offsets[1:], strict=True):
        assert choice["text"][offset:].startswith(token)
    assert choice["text"].startswith(prompt)


def test_a_prompts_scores_are_those_of_generating_it(server):
    """Greedy tokens have the same log probabilities when they are read as a prompt."""
    begun = "Once upon a time"
    made = complete(server, prompt=begun, logprobs=0, max_tokens=12)["choices"][0]
    whole = complete(server, prompt=begun + made["text"], echo=True, logprobs=0, max_tokens=0)["choices"][0]
    read = whole["logprobs"]["token_logprobs"][-len(made["logprobs"]["tokens"]) :]
    assert read == pytest.approx(made["logprobs"]["token_logprobs"], abs=0.05)
    assert whole["text"] == begun + made["text"]
    assert whole["finish_reason"] == "length"


def test_token_prompts_and_streams_score_alike(server):
    prompt = "The little girl said"
    ids = httpx2.post(f"{server.url}/tokenize", json={"content": prompt, "add_special": True}).json()["tokens"]
    asked = {"echo": True, "logprobs": 1, "max_tokens": 2}
    by_text = complete(server, prompt=prompt, **asked)["choices"][0]["logprobs"]
    by_ids = complete(server, prompt=[ids, ids], **asked)["choices"]
    for choice in by_ids:
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(by_text["token_logprobs"][1:], abs=0.05)
    lines = post(server, "/v1/completions", prompt=prompt, stream=True, **asked).text.splitlines()
    chunks = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    values = [v for chunk in chunks if chunk["logprobs"] for v in chunk["logprobs"]["token_logprobs"]]
    assert values[1:] == pytest.approx(by_text["token_logprobs"][1:], abs=0.05)
    assert "".join(chunk["text"] for chunk in chunks).startswith(prompt)


def test_nothing_is_generated_when_nothing_is_wanted(server):
    answer = complete(server, prompt="Once", max_tokens=0)
    assert (answer["choices"][0]["text"], answer["usage"]["completion_tokens"]) == ("", 0)


def test_tokens_that_end_and_tokens_that_must_come_first(server):
    free = complete(server, prompt="Once upon a time", max_tokens=12, logprobs=0)["choices"][0]
    ids = httpx2.post(f"{server.url}/tokenize", json={"content": free["text"]}).json()["tokens"]
    third = ids[2]
    ended = complete(server, prompt="Once upon a time", max_tokens=12, stop_token_ids=[third])
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert free["text"].startswith(ended["choices"][0]["text"])
    later = complete(server, prompt="Once upon a time", max_tokens=12, stop_token_ids=[third], min_tokens=6)
    assert later["usage"]["completion_tokens"] > 6
    bad = post(server, "/v1/completions", prompt="x", stop_token_ids=[10**6])
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "stop_token_ids")


def test_vllms_constraints_are_kept(server):
    assert complete(server, prompt="Answer:", guided_choice=["yes", "no"])["choices"][0]["text"] in {"yes", "no"}
    told = complete(server, prompt="Number:", structured_outputs={"regex": "[0-9]{3}"})["choices"][0]["text"]
    assert len(told) == 3
    assert told.isdigit()
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    told = complete(server, prompt="JSON:", guided_json=schema, max_tokens=40)["choices"][0]["text"]
    assert told.replace(" ", "").replace("\n", "") == '{"a":1}'
    two = {"regex": "a", "json": {}}
    for wrong in ({"guided_choice": ["a"], "guided_regex": "b"}, {"structured_outputs": two}):
        assert post(server, "/v1/completions", prompt="x", **wrong).status_code == 400


def test_the_older_limits_work(server):
    for name in ("max_tokens", "n_predict"):
        [choice] = complete(server, prompt="Once", **{name: -1})["choices"]
        assert choice["finish_reason"] == "stop", name
    assert complete(server, prompt="Once", n_predict=3)["usage"]["completion_tokens"] == 3


def test_ollamas_embeddings_are_cut_to_the_context_and_say_so(server):
    long = "word " * 3000
    asked = {"model": "spark", "input": ["short", long]}
    answer = httpx2.post(f"{server.url}/api/embed", json=asked, timeout=60)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert len(told["embeddings"]) == 2
    assert "input[1] was cut from" in told["tessera"]["notes"][0]
    assert told["total_duration"] > 0
    whole = httpx2.post(f"{server.url}/api/embed", json={**asked, "truncate": False}, timeout=60)
    assert whole.status_code == 400
    old = post(server, "/api/embeddings", prompt=long, nonsense=1)
    assert (old.status_code, old.headers["x-tessera-ignored"]) == (200, "nonsense, temperature")

"""Fields of Ollama's protocol that need a real model: log probabilities, the context of /api/generate."""

import json

import httpx2
import pytest

pytestmark = pytest.mark.e2e
ASK = {"model": "spark", "options": {"temperature": 0, "num_predict": 12}}
HI = [{"role": "user", "content": "What is a tessera?"}]


@pytest.fixture(scope="module")
def post(server):
    with httpx2.Client(base_url=server.url, timeout=120, trust_env=False) as http:

        def asked(path, **fields):
            answer = http.post(path, json={**ASK, **fields})
            if answer.status_code != 200:
                return answer.json()
            lines = [json.loads(line) for line in answer.text.splitlines()]
            return lines if fields.get("stream") is not False else lines[0]

        yield asked


def said(line):
    return line["message"]["content"] if "message" in line else line["response"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/chat", {"messages": HI}),
        ("/api/generate", {"prompt": "What is a tessera?"}),
        ("/api/generate", {"prompt": "A tessera is", "raw": True}),
    ],
    ids=["chat", "generate", "raw"],
)
def test_log_probabilities_are_those_of_the_answers_tokens(post, path, fields):
    lines = post(path, logprobs=True, top_logprobs=2, **fields)
    whole = post(path, logprobs=True, top_logprobs=2, stream=False, **fields)
    streamed = [entry for line in lines for entry in line.get("logprobs", ())]
    assert streamed == whole["logprobs"]
    assert "".join(entry["token"] for entry in streamed).strip() == said(whole).strip()
    for entry in streamed:
        assert entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] >= entry["top_logprobs"][1]["logprob"]


def test_without_alternatives_there_are_none_and_without_logprobs_nothing(post):
    whole = post("/api/chat", messages=HI, logprobs=True, stream=False)
    assert all("top_logprobs" not in entry for entry in whole["logprobs"])
    assert "logprobs" not in post("/api/chat", messages=HI, stream=False)


def test_a_generated_answer_is_continued_by_its_context(post):
    first = post("/api/generate", prompt="What is a tessera?", stream=False)
    assert all(isinstance(token, int) for token in first["context"])
    lines = post("/api/generate", prompt="And what is a tile?", context=first["context"])
    second = lines[-1]
    alone = post("/api/generate", prompt="And what is a tile?", stream=False)
    assert second["prompt_eval_count"] == alone["prompt_eval_count"] + len(first["context"])
    assert second["context"][: len(first["context"])] == first["context"]
    assert len(second["context"]) >= second["prompt_eval_count"]


def test_a_context_of_another_model_is_refused(post):
    answer = post("/api/generate", prompt="Hi", context=[1, 2_000_000], stream=False)
    assert "2000000" in answer["error"]
    lines = post("/api/generate", prompt="Hi", context=[2_000_000])
    assert "2000000" in lines["error"] if isinstance(lines, dict) else "2000000" in lines[-1]["error"]


def test_a_template_without_the_head_of_an_answer(server):
    body = {"messages": HI}
    whole = httpx2.post(f"{server.url}/apply-template", json=body, timeout=60).json()["prompt"]
    bare = httpx2.post(f"{server.url}/apply-template", json={**body, "add_generation_prompt": False}, timeout=60)
    assert bare.headers.get("x-tessera-ignored") is None
    assert whole.startswith(bare.json()["prompt"])
    assert len(whole) > len(bare.json()["prompt"])


def test_a_name_with_a_system_prompt_and_parameters_adds_them_in_both_protocols(server, post):
    """A Modelfile's SYSTEM and PARAMETER lines apply to each request unless it sets the same option."""
    manage = {"authorization": f"Bearer {server.token}"}
    made = {
        "model": "short",
        "from": "spark",
        "system": "Say little.",
        "parameters": {"num_predict": 3, "temperature": 0},
    }
    with httpx2.Client(base_url=server.url, timeout=120, headers=manage, trust_env=False) as http:

        def chat(path, model, messages, **fields):
            answer = http.post(path, json={"model": model, "messages": messages, "stream": False, **fields})
            assert answer.status_code == 200, answer.text
            return answer.json()

        try:
            assert http.post("/api/create", json={**made, "stream": False}).json() == {"status": "success"}
            shown = http.post("/api/show", json={"model": "short"}).json()
            assert 'SYSTEM """Say little."""' in shown["modelfile"]
            assert "num_predict 3" in shown["parameters"]
            system = [{"role": "system", "content": "Say little."}, *HI]
            plain = chat("/api/chat", "spark", system, options={"num_predict": 3, "temperature": 0})
            named = chat("/api/chat", "short", HI)
            assert (named["eval_count"], named["prompt_eval_count"]) == (3, plain["prompt_eval_count"])
            assert named["message"]["content"] == plain["message"]["content"]
            assert chat("/api/chat", "short", HI, options={"num_predict": 2})["eval_count"] == 2
            usage = chat("/v1/chat/completions", "short", HI)["usage"]
            assert (usage["completion_tokens"], usage["prompt_tokens"]) == (3, plain["prompt_eval_count"])
            assert chat("/v1/chat/completions", "short", HI, max_tokens=2)["usage"]["completion_tokens"] == 2
            assert http.post("/api/create", json={**made, "template": "{{ .Prompt }}"}).status_code == 400
        finally:
            http.request("DELETE", "/api/delete", json={"model": "short"})
        assert http.post("/api/show", json={"model": "short"}).status_code == 404

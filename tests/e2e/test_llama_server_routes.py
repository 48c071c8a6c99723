"""llama-server's own routes on a real model, as its clients use them, and routes refused with a reason."""

import json

import httpx2
import pytest

from tests.support.servers import wait_for

HI = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def http(server):
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        client.post("/v1/chat/completions", json={"model": "spark", "messages": HI, "max_tokens": 1})
        yield client


def complete(http, **body):
    answer = http.post("/completion", json={"temperature": 0, "model": "spark", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_completion_whole_and_streamed(http):
    whole = complete(http, prompt="Once upon a time", n_predict=12, return_tokens=True)
    assert whole["tokens_predicted"] == len(whole["tokens"]) <= 12
    assert whole["stop_type"] in {"limit", "eos"}
    assert whole["generation_settings"]["temperature"] == 0
    assert whole["timings"]["predicted_n"] == whole["tokens_predicted"]
    asked = {"model": "spark", "prompt": "Once upon a time", "n_predict": 12, "temperature": 0, "stream": True}
    lines = http.post("/completion", json=asked).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert "".join(e["content"] for e in events) == whole["content"]
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True]
    assert [token for e in events for token in e["tokens"]] == whole["tokens"]


def test_prompts_of_every_form(http):
    text = "Once upon a time"
    ids = http.post("/tokenize", json={"model": "spark", "content": text, "add_special": True}).json()["tokens"]
    one = complete(http, prompt=text, n_predict=6)["content"]
    assert complete(http, prompt=ids, n_predict=6)["content"] == one
    assert complete(http, prompt=[*ids[:-1], ids[-1]], n_predict=6)["content"] == one
    several = complete(http, prompt=[text, ids], n_predict=6)
    assert [(a["index"], a["content"]) for a in several] == [(0, one), (1, one)]
    mixed = complete(http, prompt=["Once upon", ids[-1]], n_predict=2)
    assert mixed["tokens_evaluated"] >= 3
    assert http.post("/completion", json={"prompt": [1, ["a"]]}).status_code == 400


def test_what_a_completion_can_ask_for(http):
    picked = complete(http, prompt="Hi", n_predict=4, response_fields=["content", "timings/predicted_n"])
    assert set(picked) == {"content", "timings/predicted_n"}
    told = complete(http, prompt="Hi", n_predict=3, n_probs=2, ignore_eos=True)["completion_probabilities"]
    assert len(told) == 3
    assert all(len(entry["top_logprobs"]) == 2 for entry in told)
    assert complete(http, prompt="Answer:", grammar='root ::= "yes" | "no"')["content"] in {"yes", "no"}
    assert complete(http, prompt="Hi", n_predict=0)["tokens_predicted"] == 0
    answer = http.post("/completion", json={"model": "spark", "prompt": "Hi", "n_predict": 1, "n_keep": 5})
    assert answer.headers["x-tessera-ignored"] == "n_keep"


def test_the_template_its_tokens_and_the_other_addresses(http):
    told = http.post("/apply-template", json={"model": "spark", "messages": HI}).json()["prompt"]
    assert "Hello" in told
    counted = http.post("/v1/chat/completions/input_tokens", json={"model": "spark", "messages": HI}).json()
    by_text = http.post("/tokenize", json={"model": "spark", "content": told, "add_special": True}).json()["count"]
    assert abs(counted["input_tokens"] - by_text) <= 1
    for path in ("/chat/completions", "/v1/chat/completions"):
        answer = http.post(path, json={"model": "spark", "messages": HI, "max_tokens": 2}).json()
        assert answer["system_fingerprint"].startswith("fp_")
    assert http.get("/models").json() == http.get("/v1/models").json()
    assert http.post("/v1/tokenize", json={"model": "spark", "content": "a"}).status_code == 200
    assert http.post("/v1/reranking", json={"model": "spark", "query": "a", "documents": ["b"]}).status_code == 400


def test_properties_and_slots_load_nothing_and_tell_nothing_that_was_said(http):
    props = http.get("/props", params={"model": "spark"}).json()
    assert props["default_generation_settings"]["n_ctx"] > 0
    assert props["chat_template"]
    assert "/" not in props["model_path"]
    slots = http.get("/slots").json()
    assert len([slot for slot in slots if slot["model"] == "spark"]) == props["total_slots"]  # tests share a server
    wait_for(lambda: not any(slot["is_processing"] for slot in http.get("/slots").json()), what="the answers' end")
    assert set(slots[0]) == {"id", "model", "n_ctx", "is_processing"}
    assert http.get("/props", params={"model": "nobody"}).status_code == 404
    assert http.get("/slots?fail_on_no_slot=1").status_code == 200


def test_the_fingerprint_is_in_streams_and_stays(http):
    asked = {"model": "spark", "messages": HI, "max_tokens": 2}
    whole = http.post("/v1/chat/completions", json=asked).json()["system_fingerprint"]
    lines = http.post("/v1/chat/completions", json={**asked, "stream": True}).text.splitlines()
    told = {json.loads(line[6:])["system_fingerprint"] for line in lines if line.startswith("data: {")}
    text = http.post("/v1/completions", json={"model": "spark", "prompt": "a", "max_tokens": 1}).json()
    assert told == {whole} == {text["system_fingerprint"]}


@pytest.mark.parametrize("path", ["/v1/moderations", "/v1/images/generations", "/v1/audio/speech"])
def test_what_nothing_here_can_answer_is_refused_in_words(http, path):
    answer = http.post(path, json={"input": "x"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "not_supported"


def test_ollamas_small_manners(server, http):
    assert http.get("/").text == "Ollama is running"
    assert http.get("/", headers={"accept": "application/json"}).json()["name"] == "Tessera"
    page = http.get("/", headers={"accept": "text/html,*/*"})
    assert page.headers["location"] == "/docs"
    for path in ("/", "/api/tags", "/api/version", "/v1/models", "/health"):
        answer = http.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path
    token = {"authorization": f"Bearer {server.token}"}
    pushed = http.post("/api/push", json={"model": "spark"}, headers=token)
    assert pushed.status_code == 400
    assert "not published from here" in pushed.json()["error"]
    info = http.post("/api/show", json={"model": "spark"}).json()["model_info"]
    answer = http.post("/api/show", json={"model": "spark", "verbose": True, "license": "x"})
    assert answer.headers["x-tessera-ignored"] == "license"
    assert info["tokenizer.ggml.tokens"] is None
    assert len(answer.json()["model_info"]["tokenizer.ggml.tokens"]) > 1000
    assert info["llama.embedding_length"] > 0
    assert info["tokenizer.ggml.tokens"] is None
    assert len(info) > 15


def test_anthropics_client_reads_the_models(server):
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0) as client:
        listed = {model.id: model for model in client.models.list()}
        assert listed["spark"].capabilities.image_input.supported is False
        assert listed["spark"].max_input_tokens > 0
        assert client.models.retrieve("spark").lifecycle == "active"
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.models.retrieve("nobody")
        assert caught.value.body["error"]["type"] == "not_found_error"


def test_prompts_and_biases_in_llama_servers_other_forms(http):
    one = complete(http, prompt="Once upon a time", n_predict=6)
    assert complete(http, prompt={"prompt_string": "Once upon a time"}, n_predict=6)["content"] == one["content"]
    both = complete(http, prompt=[{"prompt_string": "Once upon a time"}, "Hi"], n_predict=6)
    assert (both[0]["content"], both[0]["prompt"]) == (one["content"], "Once upon a time")
    seen = {"prompt_string": "<__media__>", "multimodal_data": ["iVBORw0KGgo="]}
    refused = http.post("/completion", json={"model": "spark", "prompt": seen})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt.multimodal_data")
    first = http.post("/tokenize", json={"model": "spark", "content": one["content"]}).json()["tokens"][0]
    word = " " + one["content"].split(" ")[1]
    for bias in ([[first, False]], [[first, -100]], {str(first): -100}, [[word, -100]]):
        other = complete(http, prompt="Once upon a time", n_predict=6, logit_bias=bias, return_tokens=True)
        assert other["content"] != one["content"], bias
    assert http.post("/completion", json={"prompt": "Hi", "logit_bias": [[1, 2, 3]]}).status_code == 400


def test_embeddings_in_llama_servers_form_and_routes_without_their_prefix(http):
    [one] = http.post("/embedding", json={"content": "Hello"}).json()
    assert (one["index"], len(one["embedding"])) == (0, 1)
    openai = http.post("/v1/embeddings", json={"model": "spark", "input": "Hello"}).json()["data"][0]
    assert one["embedding"][0] == pytest.approx(openai["embedding"], abs=1e-5)
    assert len(http.post("/embeddings", json={"model": "spark", "input": ["a", "b"]}).json()) == 2
    missing = http.post("/embedding", json={"model": "spark"})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "content")
    assert http.get("/v1/health").json()["status"] == "ok"
    asked = {"model": "spark", "input": "Hi", "max_output_tokens": 16}
    assert http.post("/responses", json=asked).json()["object"] == "response"
    assert http.post("/responses/input_tokens", json=asked).json()["input_tokens"] > 0

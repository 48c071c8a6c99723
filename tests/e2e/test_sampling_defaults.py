"""Sampling parameters that a request omits, in every protocol, and the values that a user stores for a model."""

import httpx2

ASK = [{"role": "user", "content": "What is a token?"}]


def manage(server, method, path, body=None):
    headers = {"authorization": f"Bearer {server.token}"}
    return httpx2.request(method, f"{server.url}/tessera/v1/{path}", json=body, headers=headers, timeout=60)


def chat(server, **options):
    body = {"model": "spark", "messages": ASK, "max_tokens": 2, **options}
    return httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()["tessera"]["sampling"]


def test_an_answer_tells_what_was_in_force_and_who_decided(server):
    told = chat(server)
    assert told == {
        "temperature": {"value": 0.8, "source": "llama.cpp"},
        "top_k": {"value": 40, "source": "llama.cpp"},
        "top_p": {"value": 0.95, "source": "llama.cpp"},
        "min_p": {"value": 0.05, "source": "llama.cpp"},
    }
    assert httpx2.get(f"{server.url}/v1/models/spark").json()["sampling"] == told
    neutral = chat(server, temperature=1, top_k=0, top_p=1, min_p=0)
    assert [(fact["value"], fact["source"]) for fact in neutral.values()] == [
        (1, "request"), (0, "request"), (1, "request"), (0, "request"),
    ]  # fmt: skip


def test_the_users_values_count_in_every_protocol_until_they_are_given_back(server):
    wish = {"values": {"temperature": 0.0, "top_k": 3}}
    try:
        kept = manage(server, "PUT", "models/spark/sampling", wish).json()
        assert kept["in_force"]["temperature"] == {"value": 0.0, "source": "user"}
        assert kept["recommended"]["temperature"]["value"] == 0.8
        assert chat(server)["top_k"] == {"value": 3, "source": "user"}
        assert chat(server, top_k=9)["top_k"] == {"value": 9, "source": "request"}
        text = httpx2.post(f"{server.url}/v1/completions", json={"model": "spark", "prompt": "a", "max_tokens": 1})
        assert text.json()["tessera"]["sampling"]["temperature"]["source"] == "user"
        item = httpx2.post(
            f"{server.url}/v1/responses", json={"model": "spark", "input": "a", "max_output_tokens": 16}
        ).json()
        assert (item["temperature"], item["tessera"]["sampling"]["top_k"]["value"]) == (0.0, 3)
        # Greedy by the user's setting: Anthropic messages are the same every time.
        body = {"model": "spark", "messages": ASK, "max_tokens": 12}
        answers = {
            httpx2.post(f"{server.url}/v1/messages", json=body).json()["content"][0]["text"] for _ in range(3)
        }
        assert len(answers) == 1
        wrong = manage(server, "PUT", "models/spark/sampling", {"values": {"temperature": 7}})
        assert wrong.status_code == 400
        assert "from 0 to 5" in wrong.text
    finally:
        manage(server, "PUT", "models/spark/sampling", {"values": {}})
    assert chat(server)["temperature"]["source"] == "llama.cpp"


def test_without_a_wish_the_model_named_default_answers(server):
    body = {"model": "default", "messages": ASK, "max_tokens": 2}
    assert httpx2.post(f"{server.url}/v1/chat/completions", json=body).status_code == 200
    rows = httpx2.get(f"{server.url}/v1/models").json()["data"]
    assert [row["id"] for row in rows if row["default"]] == ["spark"]

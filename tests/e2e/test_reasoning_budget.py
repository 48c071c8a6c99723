"""A reasoning budget enforced by the runner: at the limit the block is closed and the answer continues."""

import httpx2
import pytest

OPEN = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"


def ask(server, template=OPEN, **body):
    asked = {
        "model": "spark", "temperature": 0, "max_tokens": 60, "ignore_eos": True, "chat_template": template,
        "messages": [{"role": "user", "content": "Once upon a time"}], **body,
    }  # fmt: skip
    answer = httpx2.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def tokens(server, text):
    return httpx2.post(f"{server.url}/tokenize", json={"model": "spark", "content": text}).json()["count"]


@pytest.mark.parametrize(
    "wish",
    [
        {"thinking_budget": 12},
        {"thinking_budget_tokens": 12},
        {"thinking": {"type": "enabled", "budget_tokens": 12}},
        {"reasoning": {"max_tokens": 12}},
        {"chat_template_kwargs": {"thinking_budget": 12}},
    ],
)
def test_at_the_budget_the_answer_goes_on(server, wish):
    body = ask(server, **wish)
    message = body["choices"][0]["message"]
    assert 8 <= tokens(server, message["reasoning_content"]) <= 12
    usage = body["usage"]  # the marks count as reasoning; this vocabulary spells them in pieces
    assert 8 <= usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"] - 20
    assert tokens(server, message["content"]) > 20
    assert "</think>" not in message["content"]


def test_without_a_budget_nothing_is_closed(server):
    message = ask(server)["choices"][0]["message"]
    assert message["content"] == ""
    assert tokens(server, message["reasoning_content"]) > 50


def test_a_budget_of_nothing_and_guesses_ahead(server):
    message = ask(server, thinking_budget=0, speculate=True)["choices"][0]["message"]
    assert message.get("reasoning_content", "").strip() == ""
    assert message["content"]
    guessed = ask(server, thinking_budget=12, speculate=True)["choices"][0]["message"]
    assert guessed == ask(server, thinking_budget=12, speculate=False)["choices"][0]["message"]


def test_the_budget_counts_for_what_must_follow(server):
    """Structured output starts after the closing mark that was inserted."""
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    message = ask(server, thinking_budget=8, json_schema=schema, ignore_eos=False)["choices"][0]["message"]
    assert message["content"].replace(" ", "").replace("\n", "") == '{"a":1}'
    assert message["reasoning_content"]


def test_a_model_that_does_not_reason_says_that_the_budget_had_no_effect(server):
    answer = ask(server, template="{% for m in messages %}{{ m.content }}{% endfor %}", thinking_budget=8)
    assert any("no reasoning that could be bounded" in note for note in answer["tessera"]["notes"])


def test_logprobs_of_tokens_that_were_written(server):
    answer = ask(server, thinking_budget=4, logprobs=True, max_tokens=20)
    assert answer["usage"]["completion_tokens"] == 20
    assert answer["choices"][0]["logprobs"]["content"]

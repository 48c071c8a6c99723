"""A call that the model only considers in its reasoning is not executed, in any protocol."""

import json
from pathlib import Path

import httpx2
import pytest

TEMPLATES = Path(__file__).resolve().parents[1] / "data" / "templates"
# A template whose generation prompt ends with an open reasoning block.
OPENS = (TEMPLATES / "Qwen-QwQ-32B.jinja").read_text("utf-8")
ASK = [{"role": "user", "content": "Weather in Rome?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WEIGHED = f"I could write {CALL} but need not.</think>\n\nNo call needed."
FORGOTTEN = f"I look.\n{CALL}"
FUNCTION = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}

BODIES = {
    "/v1/chat/completions": {"messages": ASK, "tools": [FUNCTION]},
    "/chat/completions": {"messages": ASK, "tools": [FUNCTION]},
    "/v1/responses": {
        "input": "Weather in Rome?",
        "tools": [{"type": "function", "name": "get_weather", "parameters": PARAMETERS}],
    },
    "/v1/messages": {
        "messages": ASK,
        "max_tokens": 99,
        "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "/api/chat": {"messages": ASK, "tools": [FUNCTION], "think": True},
}


def answer(server, path, text, *, stream, **fields):
    """The visible text, calls and finish reason of a response whose model output is `text`."""
    server.say(*(text[i : i + 3] for i in range(0, len(text), 3)))
    body = {"model": "spark", "stream": stream, **BODIES[path], **fields}
    got = httpx2.post(server.url + path, json=body)
    assert got.status_code == 200, got.text
    return READERS[path](parts(got.text) if stream else [got.json()], stream=stream)


def parts(text):
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: ", "{"))]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def openai_chat(chunks, *, stream):
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    said = [choice["delta" if stream else "message"] for choice in choices]
    calls = [
        c["function"]["name"] for one in said for c in one.get("tool_calls") or [] if c["function"].get("name")
    ]
    return "".join(one.get("content") or "" for one in said), calls, choices[-1]["finish_reason"]


def responses(events, *, stream):
    whole = events[-1]["response"] if stream else events[0]
    if stream:
        named = {e["item"]["type"] for e in events if e["type"] == "response.output_item.added"}
        assert named == {item["type"] for item in whole["output"]}
    text = [part["text"] for item in whole["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(text), [i["name"] for i in whole["output"] if i["type"] == "function_call"], whole["status"]


def messages(events, *, stream):
    if not stream:
        blocks, reason = events[0]["content"], events[0]["stop_reason"]
        text = "".join(block.get("text", "") for block in blocks)
    else:
        blocks = [e["content_block"] for e in events if e["type"] == "content_block_start"]
        text = "".join(e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta")
        reason = next(e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta")
    return text, [block["name"] for block in blocks if block["type"] == "tool_use"], reason


def ollama(lines, *, stream):
    said = [line["message"] for line in lines]
    calls = [call["function"]["name"] for one in said for call in one.get("tool_calls") or []]
    return "".join(one["content"] for one in said), calls, lines[-1]["done_reason"]


READERS = {
    "/v1/chat/completions": openai_chat,
    "/chat/completions": openai_chat,
    "/v1/responses": responses,
    "/v1/messages": messages,
    "/api/chat": ollama,
}
REASONS = {
    "/v1/chat/completions": ("stop", "tool_calls"),
    "/chat/completions": ("stop", "tool_calls"),
    "/v1/responses": ("completed", "completed"),
    "/v1/messages": ("end_turn", "tool_use"),
    "/api/chat": ("stop", "stop"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", BODIES)
def test_only_a_call_that_is_made_reaches_the_client(qwen, path, stream):
    plain, called = REASONS[path]
    assert answer(qwen, path, f"<think>\n{WEIGHED}", stream=stream) == ("No call needed.", [], plain)
    assert answer(qwen, path, f"<think>\n{FORGOTTEN}", stream=stream) == ("", ["get_weather"], called)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_block_that_the_template_opened(qwen, stream):
    path = "/v1/chat/completions"
    opened = {"stream": stream, "chat_template": OPENS}
    assert answer(qwen, path, WEIGHED, **opened) == ("No call needed.", [], "stop")
    assert qwen.prompts()[-1].endswith("<think>\n")
    assert answer(qwen, path, FORGOTTEN, **opened) == ("", ["get_weather"], "tool_calls")


def test_a_strict_tool_is_not_enforced_inside_reasoning(qwen):
    strict = [{"type": "function", "function": {**FUNCTION["function"], "strict": True}}]
    answer(qwen, "/v1/chat/completions", f"<think>\n{WEIGHED}", stream=False, tools=strict)
    constraint = qwen.asked()[-1]["constraint"]
    assert (constraint["trigger"], constraint["preamble"]) == ("<tool_call>\n", ["<think>", "</think>"])


def test_an_answer_cut_in_its_reasoning_makes_no_call(qwen):
    qwen.say(f"<think>\nPerhaps {CALL} or", finish="length")
    body = {"model": "spark", **BODIES["/v1/chat/completions"]}
    choice = httpx2.post(f"{qwen.url}/v1/chat/completions", json=body).json()["choices"][0]
    assert (choice["finish_reason"], choice["message"].get("tool_calls")) == ("length", None)
    assert choice["message"]["reasoning_content"].endswith("</tool_call> or")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("hidden", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}, {}])
def test_reasoning_is_left_out_on_request(qwen, hidden, stream):
    qwen.say("<think>\n", "Secret plan.", "</think>", "\n\nHello.")
    body = {"model": "spark", "messages": ASK, "stream": stream, **hidden}
    got = httpx2.post(f"{qwen.url}/v1/chat/completions", json=body)
    chunks = parts(got.text) if stream else [got.json()]
    assert openai_chat(chunks, stream=stream) == ("Hello.", [], "stop")
    assert ("Secret plan." in got.text) == (not hidden)
    assert "x-tessera-ignored" not in got.headers

"""Tools and output formats as SDKs write them: always accepted, with a note about what is not enforced."""

import json

import httpx2
import pytest

TAGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
PARAMETERS = {
    "type": "object",
    "properties": {"tags": TAGS, "extra": {"type": "object", "propertyNames": {"type": "string"}}},
    "required": ["tags"],
}
CALL = '<tool_call>\n{"name": "file", "arguments": {"tags": ["a"]}}\n</tool_call>'
NOTE = "tools: tool 'file': tags: uniqueItems is not enforced"
ASK = [{"role": "user", "content": "File it."}]
FUNCTION = {"type": "function", "function": {"name": "file", "parameters": PARAMETERS}}
FORM = {"type": "object", "properties": {"tags": TAGS}, "required": ["tags"]}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": FORM}}

FORCED = {
    "/v1/chat/completions": {"messages": ASK, "tools": [FUNCTION], "tool_choice": "required"},
    "/v1/responses": {
        "input": "File it.",
        "tools": [{"type": "function", "name": "file", "parameters": PARAMETERS}],
        "tool_choice": {"type": "function", "name": "file"},
    },
    "/v1/messages": {
        "messages": ASK,
        "max_tokens": 50,
        "tools": [{"name": "file", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "any"},
    },
}
FORMATTED = {
    "/v1/chat/completions": {"messages": ASK, "response_format": RESPONSE_FORMAT},
    "/v1/completions": {"prompt": "x", "response_format": RESPONSE_FORMAT},
    "/v1/responses": {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": FORM}}},
    "/v1/messages": {
        "messages": ASK,
        "max_tokens": 50,
        "output_config": {"format": {"type": "json_schema", "schema": FORM}},
    },
    "/api/chat": {"messages": ASK, "format": FORM},
    "/api/generate": {"prompt": "x", "format": FORM},
    "/completion": {"prompt": "x", "json_schema": FORM},
}


def notes_of(server, path, body, *, stream=False):
    """The notes of a response, in the place that its protocol uses."""
    got = httpx2.post(server.url + path, json={"model": "spark", "stream": stream, **body})
    assert got.status_code == 200, got.text
    lines = [line.removeprefix("data: ") for line in got.text.splitlines() if line.startswith(("data: {", "{"))]
    found: list[str] = []
    for line in lines:
        said = json.loads(line)
        for holder in (said, said.get("response"), said.get("delta")):
            found += (holder.get("tessera") or {}).get("notes", []) if isinstance(holder, dict) else []
    return found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", FORCED)
def test_a_forced_call_drops_what_cannot_be_enforced(qwen, path, stream):
    qwen.say(CALL)
    assert NOTE in notes_of(qwen, path, FORCED[path], stream=stream)
    source = qwen.asked()[-1]["constraint"]["source"]
    assert "uniqueItems" not in source
    assert "propertyNames" not in source
    assert '"tags"' in source


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", FORMATTED)
def test_a_format_drops_what_cannot_be_enforced(qwen, path, stream):
    qwen.say('{"tags": []}')
    notes = notes_of(qwen, path, FORMATTED[path], stream=stream)
    assert any(note.endswith("tags: uniqueItems is not enforced") for note in notes)
    assert "uniqueItems" not in qwen.asked()[-1]["constraint"]["source"]


def test_a_strict_tool_is_refused_by_name_property_and_reason(qwen):
    strict = {**FUNCTION, "function": {**FUNCTION["function"], "strict": True}}
    weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    for choice in ("required", "auto"):
        body = {"model": "spark", "messages": ASK, "tools": [weather, strict], "tool_choice": choice}
        got = httpx2.post(f"{qwen.url}/v1/chat/completions", json=body)
        error = got.json()["error"]
        assert (got.status_code, error["code"], error["param"]) == (400, "unsupported_constraint", "tools")
        assert error["message"].endswith("strict tool 'file': tags: uniqueItems cannot be enforced")
    formed = {**RESPONSE_FORMAT, "json_schema": {**RESPONSE_FORMAT["json_schema"], "strict": True}}
    body = {"model": "spark", "messages": ASK, "response_format": formed}
    error = httpx2.post(f"{qwen.url}/v1/chat/completions", json=body).json()["error"]
    assert error["message"].endswith("tags: uniqueItems cannot be enforced")


def test_one_odd_tool_does_not_cost_the_others_their_schema(qwen):
    qwen.say(CALL)
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "not": {}}}}
    body = {"messages": ASK, "tools": [FUNCTION, odd], "tool_choice": "required"}
    notes = notes_of(qwen, "/v1/chat/completions", body)
    assert NOTE in notes
    assert any("tool 'odd': only the names of its arguments are enforced" in note for note in notes)
    assert '"tags"' in qwen.asked()[-1]["constraint"]["source"]


def test_a_format_beside_tools_leaves_the_model_its_reasoning(qwen):
    qwen.say('<think>\nhm\n</think>\n\n{"tags": []}')
    body = {"messages": ASK, "tools": [FUNCTION], "response_format": RESPONSE_FORMAT}
    assert NOTE.replace("tools:", "response_format:") in notes_of(qwen, "/v1/chat/completions", body)
    constraint = qwen.asked()[-1]["constraint"]
    assert constraint["preamble"] == ["<think>", "</think>"]
    assert constraint["source"].count("whitespace_pattern") == 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions", "/v1/completions"])
def test_a_stream_that_fails_in_the_middle_ends_as_every_stream_does(qwen, path):
    qwen.say("Hel", "lo", fault="not_finite", delay_s=0.01)
    body = {"prompt": "x"} if path == "/v1/completions" else {"messages": ASK}
    got = httpx2.post(qwen.url + path, json={"model": "spark", "stream": True, **body})
    events = [line for line in got.text.splitlines() if line.startswith("data: ")]
    assert "not_finite" in events[-2]
    assert events[-1] == "data: [DONE]"

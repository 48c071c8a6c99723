"""Tools, reasoning and output formats over /v1/chat/completions: official client, scripted responses."""

import base64
import json
from pathlib import Path

import httpx2
import pytest

from tests.support.fakes.scripted import ScriptedServer
from tests.support.late import openai

TEMPLATES = Path(__file__).resolve().parents[1] / "data" / "templates"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ASK = [{"role": "user", "content": "Weather in Rome?"}]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    template = (TEMPLATES / "Qwen-Qwen3-0.6B.jinja").read_text("utf-8")
    server = ScriptedServer(tmp_path_factory.mktemp("qwen") / "home", template=template)
    yield server
    server.stop()


@pytest.fixture
def client(qwen):
    with openai.OpenAI(base_url=f"{qwen.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def chat(client, messages=ASK, **options):
    return client.chat.completions.create(model="spark", messages=messages, **options)


def streamed(client, **options):
    """A tuple of (message fields assembled by a client, finish reason, chunks)."""
    text, reasoning, calls, finish = "", "", {}, None
    chunks = list(chat(client, stream=True, **options))
    for chunk in chunks:
        for choice in chunk.choices:
            delta = choice.delta
            text += delta.content or ""
            reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
            for call in delta.tool_calls or []:
                made = calls.setdefault(call.index, {"id": call.id, "name": call.function.name, "arguments": ""})
                made["arguments"] += call.function.arguments
            finish = choice.finish_reason or finish
    return text, reasoning, [calls[i] for i in sorted(calls)], finish, chunks


def test_a_call_with_reasoning_and_text(qwen, client):
    qwen.say("<think>\nI need", " the weather.\n</think>\n\nLet me", " look.\n", *CALL)
    answer = chat(client, tools=[WEATHER])
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.content == "Let me look."
    assert message.model_extra["reasoning_content"] == "I need the weather."
    call = message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
    assert call.id.startswith("call_")
    assert qwen.asked()[-1]["keep_special"]
    assert "get_weather" in qwen.prompts()[-1]


def test_streamed_calls_have_one_name_and_growing_arguments(qwen, client):
    qwen.say(*(CALL + "\n" + CALL))
    text, _, calls, finish, chunks = streamed(client, tools=[WEATHER])
    assert (text, finish) == ("", "tool_calls")
    assert [(c["name"], json.loads(c["arguments"])) for c in calls] == [("get_weather", {"city": "Rome"})] * 2
    assert len({c["id"] for c in calls}) == 2
    starts = [t for c in chunks for ch in c.choices for t in ch.delta.tool_calls or [] if t.id]
    assert [t.index for t in starts] == [0, 1]
    assert chunks[0].choices[0].delta.role == "assistant"


def test_a_whole_conversation_with_a_result(qwen, client):
    qwen.say(*CALL)
    first = chat(client, tools=[WEATHER]).choices[0].message
    qwen.say("It is sunny.")
    history = [*ASK, first, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny, 25 C"}]
    answer = chat(client, history, tools=[WEATHER])
    assert answer.choices[0].message.content == "It is sunny."
    assert answer.choices[0].finish_reason == "stop"
    prompt = qwen.prompts()[-1]
    assert '{"name": "get_weather", "arguments": {"city": "Rome"}}' in prompt
    assert "<tool_response>\nsunny, 25 C\n</tool_response>" in prompt


def test_only_one_call_when_parallel_calls_are_off(qwen, client):
    qwen.say(*(CALL + "\n" + CALL), delay_s=0.001)
    answer = chat(client, tools=[WEATHER], parallel_tool_calls=False)
    assert len(answer.choices[0].message.tool_calls) == 1
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage.completion_tokens > 0


def test_malformed_calls_are_reported_not_said(qwen, client):
    qwen.say("<tool_call>\nI would call something\n</tool_call>")
    answer = chat(client, tools=[WEATHER])
    assert answer.choices[0].message.content == ""
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model_extra["tessera"]["malformed_tool_calls"] == [
        {"choice": 0, "text": "I would call something"}
    ]
    qwen.say("<tool_call>\nI would call something\n</tool_call>")
    chunks = streamed(client, tools=[WEATHER])[4]
    assert chunks[-1].model_extra["tessera"]["malformed_tool_calls"][0]["text"] == "I would call something"


def test_no_calls_when_the_client_wants_none(qwen, client):
    qwen.say("Sure. ", CALL)
    answer = chat(client, tools=[WEATHER], tool_choice="none")
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content == "Sure."
    assert answer.choices[0].finish_reason == "stop"
    assert "get_weather" not in qwen.prompts()[-1]
    assert answer.model_extra["tessera"]["malformed_tool_calls"][0]["text"].startswith("get_weather{")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_call_is_a_grammar_after_reasoning(qwen, client, choice):
    qwen.say(*CALL)
    chat(client, tools=[WEATHER], tool_choice=choice)
    constraint = qwen.asked()[-1]["constraint"]
    assert constraint["kind"] == "lark"
    assert constraint["preamble"] == ["<think>", "</think>"]
    assert '"<tool_call>\\n"' in constraint["source"]


def test_a_strict_tool_is_enforced_once_a_call_begins(qwen, client):
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    qwen.say("No call.")
    chat(client, tools=[strict])
    assert qwen.asked()[-1]["constraint"]["trigger"] == "<tool_call>\n"


def test_a_schema_starts_after_reasoning(qwen, client):
    qwen.say('<think>\nhm\n</think>\n\n{"n": 4}')
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
    answer = chat(client, response_format=wanted)
    assert json.loads(answer.choices[0].message.content) == {"n": 4}
    constraint = qwen.asked()[-1]["constraint"]
    assert json.loads(constraint["source"]) == SCHEMA
    assert constraint["preamble"] == ["<think>", "</think>"]


def test_the_prefill_decides_whether_reasoning_can_come(qwen, client):
    qwen.say('{"n": 4}')
    chat(
        client,
        response_format={"type": "json_object"},
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    constraint = qwen.asked()[-1]["constraint"]
    assert (constraint["kind"], constraint.get("preamble")) == ("json_object", None)


def test_a_schema_beside_tools_allows_either(qwen, client):
    qwen.say(*CALL)
    answer = chat(client, tools=[WEATHER], response_format={"type": "json_object"})
    assert answer.choices[0].finish_reason == "tool_calls"
    assert qwen.asked()[-1]["constraint"]["source"].startswith("start: output | ")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "poem"}}, "response_format.type"),
        ({"response_format": {"type": "regex", "regex": "(a"}}, "response_format"),
        ({"extra_body": {"grammar": "nonsense"}}, "grammar"),
        ({"extra_body": {"grammar": "root ::= 'a'", "json_schema": {}}}, "grammar"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs"),
    ],
)
def test_what_cannot_be_honoured_is_a_400_that_names_the_field(client, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **options)
    assert caught.value.param == param
    assert caught.value.response.headers["x-should-retry"] == "false"


def test_reasoning_effort_none_switches_reasoning_off(qwen, client):
    qwen.say("yes")
    chat(client, reasoning_effort="none")
    assert qwen.prompts()[-1].endswith("<think>\n\n</think>\n\n")


def test_structured_parse_of_the_client(qwen, client):
    import pydantic

    class Number(pydantic.BaseModel):
        n: int

    qwen.say('{"n": 7}')
    parsed = client.chat.completions.parse(model="spark", messages=ASK, response_format=Number)
    assert parsed.choices[0].message.parsed == Number(n=7)


def test_a_cut_call_keeps_its_fragment_and_says_length(qwen, client):
    qwen.say(*CALL[:50], finish="length")
    answer = chat(client, tools=[WEATHER])
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"


def test_a_model_without_a_template_still_uses_tools(scripted):
    scripted.say(*CALL)
    with openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="unused", max_retries=0) as client:
        answer = chat(client, tools=[WEATHER])
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"
    assert answer.model_extra["tessera"]["notes"] == [
        "the template has no tools: they were described in the system message"
    ]


def test_gpt_oss_over_the_wire(tmp_path):
    template = (TEMPLATES / "openai-gpt-oss-120b.jinja").read_text("utf-8")
    server = ScriptedServer(tmp_path / "home", template=template)
    try:
        server.say(
            "<|channel|>", "analysis", "<|message|>", "think", "<|end|>", "<|start|>", "assistant", "<|channel|>",
            "commentary", " to=functions.get_weather ", "<|constrain|>", "json", "<|message|>",
            '{"city"', ': "Rome"}', "<|call|>",
        )  # fmt: skip
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            answer = chat(client, tools=[WEATHER])
        message = answer.choices[0].message
        assert message.model_extra["reasoning_content"] == "think"
        assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Rome"}
        assert message.content is None
    finally:
        server.stop()


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
        "{{ 'A' * 1000000000 }}",
    ],
)
def test_a_hostile_template_is_a_400_that_offers_the_built_in_one(tmp_path, template):
    server = ScriptedServer(tmp_path / "home", template=template)
    try:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            with pytest.raises(openai.BadRequestError, match='"chat_template": "chatml"') as caught:
                chat(client)
            assert caught.value.code == "chat_template_failed"
            server.say("Hello.")
            answer = chat(client, extra_body={"chat_template": "chatml"})
            assert answer.choices[0].message.content == "Hello."
            assert server.prompts()[-1].startswith("<|im_start|>user")
    finally:
        server.stop()


@pytest.mark.parametrize("more", [{}, {"extra_body": {"continue_final_message": True}}])
def test_the_last_answer_is_continued(qwen, client, more):
    qwen.say(" 42.")
    messages = [*ASK, {"role": "assistant", "content": "The answer is"}]
    answer = chat(client, messages, **more)
    assert answer.choices[0].message.content == " 42."
    assert qwen.prompts()[-1].endswith("<|im_start|>assistant\nThe answer is")


def test_the_last_answer_is_not_continued_where_that_is_said(qwen, client):
    qwen.say("42.")
    messages = [*ASK, {"role": "assistant", "content": "The answer is"}]
    answer = chat(client, messages, extra_body={"continue_final_message": False})
    assert answer.choices[0].message.content == "42."
    assert not qwen.prompts()[-1].endswith("The answer is")


PATCH_TOOL = {
    "type": "custom",
    "custom": {
        "name": "apply_patch",
        "description": "Edits files",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "x"'}},
    },
}
PATCH = '*** Begin Patch\n+ "quoted" line\n*** End Patch'


def said_patch():
    return "<tool_call>\n" + json.dumps({"name": "apply_patch", "arguments": {"input": PATCH}}) + "\n</tool_call>"


def test_text_after_a_call_is_a_paragraph_or_a_block_of_its_own(qwen, client):
    said = f"Let me look.\n{CALL}\nDone."
    qwen.say(said)
    assert chat(client, tools=[WEATHER]).choices[0].message.content == "Let me look.\n\nDone."
    qwen.say(*said)
    assert streamed(client, tools=[WEATHER])[0] == "Let me look.\n\nDone."
    body = {"model": "spark", "messages": ASK, "tools": [WEATHER], "stream": False}
    qwen.say(said)
    message = httpx2.post(f"{qwen.url}/api/chat", json=body).json()["message"]
    assert message["content"] == "Let me look.\n\nDone."
    tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
    qwen.say(said)
    body = {"model": "spark", "max_tokens": 50, "messages": ASK, "tools": [tool]}
    blocks = httpx2.post(f"{qwen.url}/v1/messages", json=body).json()["content"]
    assert [block.get("text") for block in blocks] == ["Let me look.", None, "Done."]
    qwen.say(said)
    body = {"model": "spark", "input": "Rome?", "tools": [{"type": "function", **WEATHER["function"]}]}
    items = httpx2.post(f"{qwen.url}/v1/responses", json=body).json()["output"]
    texts = [item["content"][0]["text"] if "content" in item else None for item in items]
    assert texts == ["Let me look.", None, "Done."]
    # The same history shows the model the same text.
    history = [
        ("/v1/messages", {"max_tokens": 50, "messages": [*ASK, {"role": "assistant", "content": [
            {"type": "text", "text": "Let me "}, {"type": "text", "text": "look."}, blocks[1],
            {"type": "text", "text": "Done."}]}, {"role": "user", "content": "So?"}], "tools": [tool]}),
        ("/v1/responses", {"input": [*ASK, items[0], items[2], {"role": "user", "content": "So?"}]}),
    ]  # fmt: skip
    for path, body in history:
        qwen.say("Sunny.")
        assert httpx2.post(f"{qwen.url}{path}", json={"model": "spark", **body}).status_code == 200
        assert "Let me look.\n\nDone." in qwen.prompts()[-1]


def test_custom_tools_take_raw_text(qwen, client):
    qwen.say(*said_patch())
    raw = client.chat.completions.with_raw_response.create(model="spark", messages=ASK, tools=[PATCH_TOOL])
    assert raw.headers["x-tessera-ignored"] == "tools[0].custom.format.grammar"
    [call] = raw.parse().choices[0].message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "apply_patch", PATCH)
    assert 'start: \\"x\\"' in qwen.prompts()[-1]
    qwen.say("Done.")
    told = {"role": "assistant", "tool_calls": [call.model_dump()]}
    result = {"role": "tool", "tool_call_id": call.id, "content": "patched"}
    assert chat(client, [*ASK, told, result], tools=[PATCH_TOOL]).choices[0].message.content == "Done."
    assert "patched" in qwen.prompts()[-1]
    assert "+ \\" in qwen.prompts()[-1].split("Begin Patch")[1]


def test_streamed_custom_calls_tell_their_text_at_once(qwen, client):
    qwen.say(*(CALL + said_patch()))
    chosen = {"type": "custom", "custom": {"name": "apply_patch"}}
    chunks = list(chat(client, stream=True, tools=[WEATHER, PATCH_TOOL]))
    deltas = [c.model_dump(exclude_none=True) for k in chunks for c in k.choices[0].delta.tool_calls or []]
    [begin, text] = [delta for delta in deltas if delta["index"] == 1]
    assert (begin["type"], begin["custom"]) == ("custom", {"name": "apply_patch", "input": ""})
    assert text["custom"] == {"input": PATCH}
    first = "".join(d["function"]["arguments"] for d in deltas if d["index"] == 0)
    assert json.loads(first) == {"city": "Rome"}
    qwen.say(*said_patch()[:80])
    cut = list(chat(client, stream=True, tools=[PATCH_TOOL], tool_choice=chosen))
    assert cut[-1].choices[0].finish_reason


def test_text_files_in_a_message_are_read(qwen, client):
    data = "data:text/plain;base64," + base64.b64encode("Grüße".encode()).decode()
    asked = [{"type": "text", "text": "Read:"}, {"type": "file", "file": {"filename": "a.txt", "file_data": data}}]
    qwen.say("Yes.")
    chat(client, [{"role": "user", "content": asked}])
    assert "a.txt:\nGrüße" in qwen.prompts()[-1]
    for file, why in (
        ({"file_id": "file-1"}, "send the file itself"),
        ({"file_data": "data:application/pdf;base64,JVBERi0xLjQK/w=="}, "only files of plain text"),
        ({"file_data": "data:text/plain;base64,%%%"}, "not valid base64"),
    ):
        with pytest.raises(openai.BadRequestError, match=why) as refused:
            chat(client, [{"role": "user", "content": [{"type": "file", "file": file}]}])
        assert refused.value.param.startswith("messages[0].content[0].file.file_")
        part = {"type": "input_file", **file}
        with pytest.raises(openai.BadRequestError, match=why):
            client.responses.create(model="spark", input=[{"role": "user", "content": [part]}])

"""The official Anthropic client with scripted responses: every block, event and stop reason."""

import importlib
import json

import httpx2
import pytest

WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def anthropic():
    """The client package; lazily imported, because its import takes 1 s in every collecting process."""
    return importlib.import_module("anthropic")


@pytest.fixture
def client(qwen, anthropic):
    with anthropic.Anthropic(base_url=qwen.url, api_key="unused", max_retries=0) as made:
        yield made


def pieces(text):
    return [text[i : i + 3] for i in range(0, len(text), 3)]


def test_a_plain_answer(qwen, client):
    qwen.say("Hello", " there")
    answer = client.messages.create(model="spark", max_tokens=20, messages=HI)
    assert [b.text for b in answer.content] == ["Hello there"]
    assert answer.stop_reason == "end_turn"
    assert answer.usage.output_tokens == 2
    assert answer.usage.input_tokens == len(qwen.prompts()[0])


def test_thinking_text_and_a_call_in_one_stream(qwen, client):
    qwen.say(*pieces(f"<think>\nLook it up.\n</think>\n\nLet me see.\n{CALL}"))
    events = []
    with client.messages.stream(
        model="spark",
        max_tokens=100,
        messages=[{"role": "user", "content": "Weather in Paris?"}],
        tools=[WEATHER],
        thinking={"type": "enabled", "budget_tokens": 1024},
    ) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    kinds = [(b.type, getattr(b, "thinking", None) or getattr(b, "text", None) or b.input) for b in final.content]
    assert kinds == [("thinking", "Look it up."), ("text", "Let me see."), ("tool_use", {"city": "Paris"})]
    assert final.stop_reason == "tool_use"
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"
    assert events.count("content_block_start") == events.count("content_block_stop") == 3


def test_the_whole_form_equals_the_stream(qwen, client):
    said = f"<think>\nHm.\n</think>\n\n{CALL}\n{CALL}"
    qwen.say(*pieces(said))
    qwen.say(said)
    asked = {"model": "spark", "max_tokens": 100, "messages": HI, "tools": [WEATHER]}
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    whole = client.messages.create(**asked)
    keep = ("type", "thinking", "name", "input")
    left, right = ([{k: b.model_dump().get(k) for k in keep} for b in a.content] for a in (streamed, whole))
    assert left == right
    ids = [b.id for b in whole.content if b.type == "tool_use"]
    assert len(set(ids)) == 2


def test_a_tool_conversation_reaches_the_template(qwen, client):
    qwen.say("It is sunny.")
    client.messages.create(
        model="spark",
        max_tokens=20,
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"},
            {"type": "text", "text": "You are terse.", "cache_control": {"type": "ephemeral"}},
        ],
        tools=[WEATHER],
        messages=[
            {"role": "user", "content": "Weather in Paris?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Look.", "signature": ""},
                    {"type": "text", "text": "A moment."},
                    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "text", "text": "sunny"}],
                    },
                    {"type": "text", "text": "So?"},
                ],
            },
        ],
    )
    [prompt] = qwen.prompts()
    assert "cch=" not in prompt
    assert "billing" not in prompt
    for part in ("You are terse.", '"name": "get_weather"', "sunny", "So?", "A moment."):
        assert part in prompt
    assert prompt.index("sunny") < prompt.index("So?")


def test_the_billing_header_does_not_change_the_prompt(qwen, client):
    for value in ("aaaaa", "bbbbb"):
        qwen.say("ok")
        system = f"x-anthropic-billing-header: cc_version=1; cch={value};\nBe brief."
        client.messages.create(model="spark", max_tokens=5, messages=HI, system=system)
    first, second = qwen.prompts()
    assert first == second


def test_system_inside_the_messages(qwen, client):
    qwen.say("ok")
    messages = [*HI, {"role": "assistant", "content": "Yes?"}, {"role": "system", "content": "New rule."}, *HI]
    answer = client.messages.create(model="spark", max_tokens=5, messages=messages)
    assert answer.content[0].text == "ok"
    assert "New rule." in qwen.prompts()[0]


@pytest.mark.parametrize(
    ("reply", "stop_reason", "stop_sequence"),
    [({"finish": "length"}, "max_tokens", None), ({"finish": "stop"}, "end_turn", None)],
)
def test_stop_reasons(qwen, client, reply, stop_reason, stop_sequence):
    qwen.say("a", **reply)
    answer = client.messages.create(model="spark", max_tokens=1, messages=HI, stop_sequences=["X"])
    assert (answer.stop_reason, answer.stop_sequence) == (stop_reason, stop_sequence)
    assert qwen.asked()[0]["stop"] == ["X"]


def test_tool_choice_any_constrains_and_none_hides(qwen, client):
    qwen.say(CALL)
    client.messages.create(model="spark", max_tokens=50, messages=HI, tools=[WEATHER], tool_choice={"type": "any"})
    qwen.say("no")
    client.messages.create(model="spark", max_tokens=50, messages=HI, tools=[WEATHER], tool_choice={"type": "none"})
    forced, free = qwen.asked()
    assert forced["constraint"]["kind"] == "lark"
    assert free.get("constraint") is None
    assert "get_weather" not in free["prompt"]


def test_count_tokens_is_what_would_run(qwen, client):
    qwen.say("ok")
    asked = {"model": "spark", "messages": HI, "system": "Be brief.", "tools": [WEATHER]}
    counted = client.messages.count_tokens(**asked).input_tokens
    answer = client.messages.create(max_tokens=5, **asked)
    assert counted == answer.usage.input_tokens


def test_overflow_says_what_clients_compact_on(qwen, client, anthropic):
    big = [{"role": "user", "content": "x" * (1 << 20)}]
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: ") as caught:
        client.messages.create(model="spark", max_tokens=5, messages=big)
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        list(client.messages.create(model="spark", max_tokens=5, messages=big, stream=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": 5}, "model"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "tool", "name": "nothing"}}, "nothing"),
        ({"tool_choice": {"type": "any"}}, "tool"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]},
         "no addresses"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "user", "content": ""}]}, "empty"),
        ({"output_format": {"type": "json_schema", "schema": {"properties": {"a": False}, "required": ["a"]}}},
         "unsatisfiable"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused(qwen, change, words):
    body = {"model": "spark", "max_tokens": 5, "messages": HI, **change}
    answer = httpx2.post(f"{qwen.url}/v1/messages", json=body)
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert words in answer.json()["error"]["message"]


def test_unknown_model_and_unknown_fields(qwen, client, anthropic):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="claude-nothing", max_tokens=5, messages=HI)
    qwen.say("ok")
    body = {"model": "spark", "max_tokens": 5, "messages": HI, "inference_geo": "mars"}
    answer = httpx2.post(f"{qwen.url}/v1/messages?beta=true", json=body, headers={"anthropic-beta": "x"})
    assert answer.headers["x-tessera-ignored"] == "inference_geo"


def test_a_malformed_call_is_reported_not_leaked(qwen):
    qwen.say('<tool_call>\n{"nothing": [1\n</tool_call>')
    body = {"model": "spark", "max_tokens": 50, "messages": HI, "tools": [WEATHER]}
    answer = httpx2.post(f"{qwen.url}/v1/messages", json=body).json()
    assert not any("tool_call" in json.dumps(b) for b in answer["content"])
    assert answer["malformed_tool_calls"]


def test_models_as_the_client_lists_them(client):
    assert [(m.id, m.type) for m in client.models.list()] == [("spark", "model")]
    assert client.models.retrieve("spark").display_name


def test_a_model_is_what_the_clients_types_say(qwen, client, anthropic):
    """Validates with the client's own types: capabilities are an object there, but OpenAI clients read a list."""
    listed, single = next(iter(client.models.list())), client.models.retrieve("spark")
    for model in (listed, single):
        anthropic.types.ModelInfo.model_validate_json(model.to_json())
        assert model.capabilities.image_input.supported is False
        assert model.capabilities.structured_outputs.supported is True
        assert model.max_input_tokens > 0
    plain = httpx2.get(f"{qwen.url}/v1/models/spark").json()
    assert isinstance(plain["capabilities"], list)


def test_an_unknown_model_is_refused_in_the_clients_own_shape(qwen, client, anthropic):
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.models.retrieve("zz")
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "not_found_error"
    plain = httpx2.get(f"{qwen.url}/v1/models/zz").json()
    assert plain["error"]["code"] == "model_not_found"


def test_a_dead_runner_is_an_error_event(qwen, client, anthropic):
    qwen.say("loaded")  # a runner that dies during its self-check is a different case
    client.messages.create(model="spark", max_tokens=5, messages=HI)
    qwen.say("never", die=9)
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(client.messages.create(model="spark", max_tokens=5, messages=HI, stream=True))
    assert "process ended" in str(caught.value)
    qwen.say("back")
    assert client.messages.create(model="spark", max_tokens=5, messages=HI).content[0].text == "back"


def test_a_call_cut_by_the_limit_is_an_answer(qwen, client):
    cut = '<tool_call>\n{"name": "get_weather", "arguments": {"days": 3, "city": "Par'
    qwen.say(*pieces(cut), finish="length")
    answer = client.messages.create(model="spark", max_tokens=16, messages=HI, tools=[WEATHER])
    assert answer.stop_reason == "max_tokens"
    [block] = answer.content
    assert (block.name, block.input) == ("get_weather", {"days": 3})


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        ("bash_20250124", "bash", '"command"'),
        ("text_editor_20250728", "str_replace_based_edit_tool", '"old_str"'),
        ("memory_20250818", "memory", '"rename"'),
    ],
)
def test_tools_that_the_client_runs_are_explained_to_the_model(qwen, client, kind, name, shown):
    call = CALL.replace("get_weather", name).replace("city", "command")
    qwen.say(*pieces(call))
    answer = client.messages.create(model="spark", max_tokens=50, messages=HI, tools=[{"type": kind, "name": name}])
    assert shown in qwen.prompts()[-1]
    [block] = answer.content
    assert (block.name, block.input, answer.stop_reason) == (name, {"command": "Paris"}, "tool_use")


def test_an_answer_that_was_begun_is_continued(qwen, client):
    qwen.say('"a": 1}')
    answer = client.messages.create(
        model="spark", max_tokens=20, messages=[*HI, {"role": "assistant", "content": "{"}]
    )
    assert qwen.prompts()[-1].endswith("{")
    assert answer.content[0].text == '"a": 1}'

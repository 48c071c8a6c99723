"""The official client's strict stream with scripted responses, and requests of coding agents."""

import json

import httpx2
import pytest

from engine.server.openai.schemas import ChatMessage
from engine.server.openai.translate import to_messages
from tests.support.late import openai

CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
MCP = {"type": "namespace", "name": "mcp__files__", "description": "Files", "tools": [{**WEATHER, "name": "read"}]}


@pytest.fixture
def client(qwen):
    with openai.OpenAI(base_url=f"{qwen.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def pieces(text):
    return [text[i : i + 5] for i in range(0, len(text), 5)]


def events(server, body):
    with httpx2.stream("POST", f"{server.url}/v1/responses", json={"stream": True, **body}) as answer:
        assert answer.status_code == 200
        lines = list(answer.iter_lines())
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def test_a_plain_answer(qwen, client):
    qwen.say("Hello", " there")
    answer = client.responses.create(model="spark", input="Hi", instructions="Be brief.")
    assert answer.output_text == "Hello there"
    assert answer.status == "completed"
    assert answer.usage.total_tokens == answer.usage.input_tokens + 2
    assert "Be brief." in qwen.prompts()[0]
    openai.types.responses.Response.model_validate(answer.model_dump())


def test_the_strict_stream_with_reasoning_text_and_a_call(qwen, client):
    call = CALL % ("get_weather", '{"city": "Paris"}')
    qwen.say(*pieces(f"<think>\nLook it up.\n</think>\n\nLet me see.\n{call}"))
    with client.responses.stream(model="spark", input="Weather?", tools=[WEATHER]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output[0].content[0].text == "Look it up."
    assert final.output_text == "Let me see."
    assert json.loads(final.output[2].arguments) == {"city": "Paris"}
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"


def test_every_event_is_numbered_and_in_order(qwen):
    qwen.say(*pieces("<think>\nA.\n</think>\n\nB.\n" + CALL % ("get_weather", "{}")))
    told = events(qwen, {"model": "spark", "input": "x", "tools": [WEATHER]})
    assert [e["sequence_number"] for e in told] == list(range(len(told)))
    added = [e for e in told if e["type"] == "response.output_item.added"]
    done = [e for e in told if e["type"] == "response.output_item.done"]
    assert [e["output_index"] for e in added] == [e["output_index"] for e in done] == [0, 1, 2]
    assert [e["item"]["id"] for e in added] == [e["item"]["id"] for e in done]
    assert [i["id"] for i in told[-1]["response"]["output"]] == [e["item"]["id"] for e in done]
    assert len({e["response"]["id"] for e in told if "response" in e}) == 1
    for delta, total in (
        ("output_text.delta", "output_text.done"),
        ("reasoning_text.delta", "reasoning_text.done"),
    ):
        parts = "".join(e["delta"] for e in told if e["type"] == f"response.{delta}")
        [whole] = [e["text"] for e in told if e["type"] == f"response.{total}"]
        assert parts == whole


# What https://www.openresponses.org requires of every response object, finished or not.
REQUIRED = {
    "id": str,
    "object": str,
    "created_at": int,
    "completed_at": int | None,
    "status": str,
    "model": str,
    "incomplete_details": dict | None,
    "previous_response_id": str | None,
    "instructions": str | None,
    "output": list,
    "error": dict | None,
    "tools": list,
    "tool_choice": str | dict,
    "truncation": str,
    "parallel_tool_calls": bool,
    "text": dict,
    "top_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "top_logprobs": int,
    "temperature": float,
    "reasoning": dict | None,
    "usage": dict | None,
    "max_output_tokens": int | None,
    "max_tool_calls": int | None,
    "store": bool,
    "background": bool,
    "service_tier": str,
    "metadata": dict,
    "safety_identifier": str | None,
    "prompt_cache_key": str | None,
}


def test_every_response_object_of_a_stream_is_whole(qwen):
    """Clients of several servers validate each event; sampling values are known before the model is loaded."""
    qwen.say("ok")
    bare = {"type": "function", "name": "f"}
    body = {"model": "spark", "input": "x", "tools": [bare], "prompt_cache_key": "mine", "top_p": 0.5}
    whole = [event["response"] for event in events(qwen, body) if "response" in event]
    assert [found["status"] for found in whole] == ["in_progress", "in_progress", "completed"]
    for found in whole:
        wrong = [name for name, kind in REQUIRED.items() if not isinstance(found.get(name, ...), kind)]
        assert wrong == []
        assert found["tools"] == [{**bare, "description": None, "parameters": None, "strict": False}]
        assert (found["prompt_cache_key"], found["top_p"]) == ("mine", 0.5)
    assert len({found["temperature"] for found in whole}) == 1
    assert whole[-1]["completed_at"] >= whole[-1]["created_at"]


def test_custom_tools_take_raw_text(qwen, client):
    patch = '*** Begin Patch\n+ "quoted" line\n*** End Patch'
    qwen.say(*pieces(CALL % ("apply_patch", json.dumps({"input": patch}))))
    raw = client.responses.with_raw_response.create(model="spark", input="Fix it", tools=[PATCH])
    [item] = raw.parse().output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", patch)
    assert "tools[0].format" in raw.headers["x-tessera-ignored"]
    qwen.say("Done.")
    client.responses.create(
        model="spark",
        tools=[PATCH],
        input=[
            {"role": "user", "content": "Fix it"},
            {"type": "custom_tool_call", "call_id": item.call_id, "name": "apply_patch", "input": patch},
            {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "patched"},
        ],
    )
    assert "patched" in qwen.prompts()[-1]


def test_namespaces_are_flattened_and_told_apart_again(qwen, client):
    qwen.say(CALL % ("mcp__files__read", '{"city": "x"}'))
    [item] = client.responses.create(model="spark", input="Read", tools=[MCP]).output
    assert (item.name, item.namespace) == ("read", "mcp__files__")
    assert '"mcp__files__read"' in qwen.prompts()[0]


def test_parallel_calls_go_back_in_one_turn(qwen, client):
    two = CALL % ("get_weather", '{"city": "Paris"}') + "\n" + CALL % ("get_weather", '{"city": "Rome"}')
    qwen.say(*pieces(two))
    first = client.responses.create(model="spark", input="Both?", tools=[WEATHER])
    assert [i.type for i in first.output] == ["function_call", "function_call"]
    assert len({i.call_id for i in first.output}) == 2
    qwen.say("Both sunny.")
    outputs = [{"type": "function_call_output", "call_id": i.call_id, "output": "sunny"} for i in first.output]
    second = client.responses.create(model="spark", previous_response_id=first.id, input=outputs, tools=[WEATHER])
    assert second.output_text == "Both sunny."
    prompt = qwen.prompts()[-1]
    assert prompt.index("Both?") < prompt.index("Rome") < prompt.index("sunny")


def test_stateless_history_reaches_the_template(qwen, client):
    qwen.say("ok")
    client.responses.create(
        model="spark",
        store=False,
        tools=[WEATHER],
        include=["reasoning.encrypted_content"],
        prompt_cache_key="abc",
        input=[
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm"}],
            },
            {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "snow"},
            {"type": "message", "role": "developer", "content": "Be polite."},
            {"type": "message", "role": "user", "content": "So?"},
        ],
    )
    [prompt] = qwen.prompts()
    for part in ("Weather?", "Oslo", "snow", "Be polite.", "So?"):
        assert part in prompt


def test_stored_answers_and_forgetting_them(qwen, client):
    qwen.say("My name is Tess.")
    first = client.responses.create(model="spark", input="Who are you?", instructions="Old rule.")
    assert client.responses.retrieve(first.id).output_text == "My name is Tess."
    [item] = client.responses.input_items.list(first.id).data
    assert item.content[0].text == "Who are you?"
    qwen.say("Tess.")
    client.responses.create(model="spark", input="Again?", previous_response_id=first.id)
    prompt = qwen.prompts()[-1]
    assert "My name is Tess." in prompt
    assert "Old rule." not in prompt  # instructions apply to one request only
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="no stored response"):
        client.responses.create(model="spark", input="x", previous_response_id=first.id)
    qwen.say("x")
    unstored = client.responses.create(model="spark", input="x", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_structured_text(qwen, client):
    from pydantic import BaseModel

    class City(BaseModel):
        name: str

    qwen.say('{"name": "Paris"}')
    parsed = client.responses.parse(model="spark", input="City?", text_format=City)
    assert parsed.output_parsed == City(name="Paris")
    assert qwen.asked()[0]["constraint"]["kind"] == "json_schema"


def test_the_length_limit_is_incomplete(qwen, client):
    qwen.say("a", "b", finish="length")
    answer = client.responses.create(model="spark", input="x", max_output_tokens=2)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    qwen.say("a", "b", finish="length")
    assert (
        events(qwen, {"model": "spark", "input": "x", "max_output_tokens": 2})[-1]["type"] == "response.incomplete"
    )


def test_the_item_that_the_limit_cut_is_incomplete_in_every_event(qwen, client):
    qwen.say("one", " two", finish="length")
    done = [
        e.item for e in client.responses.create(model="spark", input="hi", stream=True) if "item.done" in e.type
    ]
    assert [item.status for item in done] == ["incomplete"]


def test_a_call_that_the_limit_cut_has_no_event_that_ends_its_arguments(qwen, client):
    tools = [{"type": "function", "name": "rm", "parameters": {"type": "object", "properties": {"path": {}}}}]
    call = '<tool_call>\n{"name": "rm", "arguments": {"path": "/tmp"}}\n</tool_call>'
    for text, finish in ((call, "stop"), (call[:55], "length")):
        qwen.say(text, finish=finish)
        kinds = [e.type for e in client.responses.create(model="spark", input="hi", tools=tools, stream=True)]
        assert ("response.function_call_arguments.done" in kinds) == (finish == "stop")
        assert "response.output_item.done" in kinds


def test_a_session_begun_with_anthropics_own_tools_goes_on_here(qwen):
    used = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result"}]},
        {"type": "mcp_tool_use", "id": "m", "name": "n", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m", "content": []},
        {"type": "bash_code_execution_tool_result", "tool_use_id": "s", "content": {}},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "compaction", "content": "They greeted."},
        {"type": "text", "text": "Found."},
    ]
    user = {"role": "user", "content": "And now?"}
    body = {"model": "spark", "max_tokens": 9, "messages": [user, {"role": "assistant", "content": used}, user]}
    qwen.say("ok")
    answer = httpx2.post(f"{qwen.url}/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    assert "messages[].content[]" in answer.headers["x-tessera-ignored"]
    assert "They greeted.\n\nFound." in qwen.prompts()[-1]


def test_a_session_begun_on_a_hosted_model_goes_on_here(qwen):
    items = [
        {"role": "user", "content": "Look it up."},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        {"type": "mcp_call", "id": "mcp_1", "name": "x", "arguments": "{}", "server_label": "y"},
        {"type": "local_shell_call", "id": "ls_1", "call_id": "c", "action": {}, "status": "completed"},
        {"type": "local_shell_call_output", "id": "lso_1", "output": "x"},
        {"type": "image_generation_call", "id": "ig_1", "result": "", "status": "completed"},
        {"type": "apply_patch_call", "call_id": "p", "operation": {"type": "delete_file", "path": "a"}},
        {"type": "apply_patch_call_output", "call_id": "p", "status": "completed", "output": "gone"},
        {"role": "assistant", "content": "It says so."},
        {"role": "user", "content": "And now?"},
    ]
    qwen.say("ok")
    answer = httpx2.post(f"{qwen.url}/v1/responses", json={"model": "spark", "input": items})
    assert answer.status_code == 200, answer.text
    assert "input[" in answer.headers["x-tessera-ignored"]
    prompt = qwen.prompts()[-1]
    assert prompt.index("Look it up.") < prompt.index("It says so.") < prompt.index("And now?")


PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
SHOWN = {
    "/v1/responses": {
        "input": [
            {"role": "user", "content": "Look."},
            {"type": "function_call", "call_id": "c1", "name": "view", "arguments": "{}"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [
                    {"type": "output_text", "text": "Here."},
                    {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"},
                ],
            },
        ]
    },
    "/v1/messages": {
        "max_tokens": 20,
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "view", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c1",
                        "content": [
                            {"type": "text", "text": "Here."},
                            {
                                "type": "image",
                                "source": {"type": "base64", "media_type": "image/png", "data": PICTURE},
                            },
                        ],
                    }
                ],
            },
        ],
    },
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "I look."}]}],
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "view", "arguments": "{}"}}],
            },
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": [
                    {"type": "text", "text": "Here."},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}},
                ],
            },
        ]
    },
}


@pytest.mark.parametrize("path", SHOWN)
def test_an_image_in_a_tools_result_does_not_end_the_session_of_a_model_that_reads_text(qwen, path):
    qwen.say("ok")
    answer = httpx2.post(f"{qwen.url}{path}", json={"model": "spark", **SHOWN[path]})
    assert answer.status_code == 200, answer.text
    assert "Here.\n[image that this model cannot see]" in qwen.prompts()[-1]
    assert "images of tools and of earlier messages were left out" in answer.text
    assert "x-tessera-ignored" not in answer.headers


def test_parts_of_reasoning_in_a_history_are_reasoning():
    history = [ChatMessage.model_validate(message) for message in SHOWN["/v1/chat/completions"]["messages"][1:2]]
    assert [(m.content, m.reasoning) for m in to_messages(history)] == [("", "I look.")]
    said = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hello."}]
    [plain] = to_messages([ChatMessage(role="assistant", content=said)])
    assert (plain.content, plain.reasoning) == ("Hello.", "Hm.")


def test_calls_in_a_history_may_have_objects_as_arguments_and_no_id():
    function = {"name": "view", "arguments": {"at": "é"}}
    calls = [{"id": None, "type": "function", "function": function}, {"function": {"name": "view"}}]
    [message] = to_messages([ChatMessage(role="assistant", content=None, tool_calls=calls)])
    assert [(c.id, c.arguments) for c in message.tool_calls] == [("", '{"at": "é"}'), ("", "")]


def test_overflow_is_a_failed_response_or_a_400(qwen, client):
    big = "x" * (1 << 20)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="spark", input=big)
    assert caught.value.code == "context_length_exceeded"
    last = events(qwen, {"model": "spark", "input": big})[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "context_length_exceeded"


def test_a_dead_runner_fails_the_response(qwen):
    qwen.say("x", die=9)
    last = events(qwen, {"model": "spark", "input": "x"})[-1]
    assert last["response"]["error"]["code"] == "server_error"
    assert "process ended" in last["response"]["error"]["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "poem"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y.png"}]}]},
         "input[0].content[0].image_url"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[0].name"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"model": "nothing"}, "model"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_before_a_stream_begins(qwen, change, param):
    body = {"model": "spark", "input": "x", "stream": True, **change}
    answer = httpx2.post(f"{qwen.url}/v1/responses", json=body)
    assert answer.status_code == (404 if param == "model" else 400)
    assert answer.json()["error"]["param"] == param


def test_web_search_is_reported_not_run(qwen):
    qwen.say("ok")
    body = {"model": "spark", "input": "x", "tools": [{"type": "web_search"}, WEATHER], "truncation": "auto"}
    answer = httpx2.post(f"{qwen.url}/v1/responses", json=body)
    assert answer.headers["x-tessera-ignored"] == "truncation, tools[0] (web_search)"
    assert answer.json()["truncation"] == "disabled"


def test_items_that_were_stored_are_found_by_their_ids(qwen, client):
    """The AI SDK sends this from the second turn on."""
    qwen.say("I am Qwen.")
    first = client.responses.create(model="spark", input="Who are you?")
    [message] = first.output
    qwen.say("Yes.")
    second = client.responses.create(
        model="spark",
        input=[
            {"role": "user", "content": "Who are you?"},
            {"type": "item_reference", "id": message.id},
            {"role": "user", "content": "Really?"},
        ],
    )
    assert "I am Qwen." in qwen.prompts()[-1]
    listed = client.responses.input_items.list(second.id).data
    assert [i.id for i in listed if i.id == message.id] == [message.id]
    client.responses.delete(first.id)  # the second response still holds the item
    qwen.say("So.")
    bare = client.responses.create(model="spark", input=[{"id": message.id}, {"role": "user", "content": "So?"}])
    assert "I am Qwen." in qwen.prompts()[-1]
    for response in (second, bare):
        client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="spark", input=[{"type": "item_reference", "id": message.id}])
    assert caught.value.body["param"] == "input[0].id"
    assert caught.value.body["code"] == "item_not_found"


def test_a_conversation_is_compacted_and_goes_on(qwen, client):
    qwen.say("Noted.")
    first = client.responses.create(model="spark", input="My boat is called Heron.")
    qwen.say("<think>\nHm.\n</think>\n\n", "The user's boat", " is the Heron.")
    more = [{"role": "user", "content": "It is blue."}, {"role": "assistant", "content": "Nice colour."}]
    raw = client.responses.with_raw_response.compact(model="spark", previous_response_id=first.id, input=more)
    told = raw.parse()
    assert "Summarize our whole conversation" in qwen.prompts()[-1]
    assert "Nice colour." in qwen.prompts()[-1]
    assert (told.object, [item.type for item in told.output]) == (
        "response.compaction",
        ["message", "message", "compaction"],
    )
    said = [item.content[0].text for item in told.output[:2]]
    assert said == ["My boat is called Heron.", "It is blue."]
    assert told.usage.output_tokens > 0
    qwen.say("The Heron.")
    kept = raw.http_response.json()["output"]
    client.responses.create(model="spark", input=[*kept, {"role": "user", "content": "Which boat?"}])
    assert "The user's boat is the Heron." in qwen.prompts()[-1]
    assert "Nice colour." not in qwen.prompts()[-1]


def test_a_summary_of_elsewhere_is_refused(client):
    sealed = {"type": "compaction", "encrypted_content": "gAAAAAB"}
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="spark", input=[sealed, {"role": "user", "content": "Go on"}])
    assert caught.value.body["param"] == "input[0].encrypted_content"


def test_an_empty_summary_changes_nothing(qwen, client):
    qwen.say(" ")
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.compact(model="spark", input="My boat is called Heron.")
    assert caught.value.body["code"] == "no_summary"

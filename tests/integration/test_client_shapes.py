"""Forms of requests that other programs send, over a socket: items of Codex, results in any order, parts, nulls."""

import base64
import json

import httpx2
import pytest

from tests.support.fakes.scripted import TOKEN

CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
EXEC = {"type": "custom", "name": "exec", "description": "Run JavaScript", "format": {"type": "text"}}
WAIT = {"type": "function", "name": "wait", "description": "Wait", "parameters": CITY}
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
WRAPPED = "\r\n".join(PICTURE[i : i + 40] for i in range(0, len(PICTURE), 40)) + "\n"
HI = [{"role": "user", "content": "Hi"}]


def post(server, path, body, **headers):
    answer = httpx2.post(f"{server.url}{path}", json={"model": "spark", **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def codex_items(*tools):
    """The beginning of Codex's requests since 0.144: the tools are an item, in namespaces."""
    return [
        {"type": "additional_tools", "role": "developer", "tools": list(tools)},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be careful."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
    ]


def test_tools_in_an_item_of_the_input_are_offered_and_called(qwen):
    space = {"type": "namespace", "name": "functions", "description": "Tools.", "tools": [EXEC, WAIT]}
    files = {"type": "namespace", "name": "mcp__files", "tools": [{**EXEC, "name": "patch"}]}
    items = codex_items(space, files, {"type": "web_search"})
    qwen.say(CALL % ("exec", '{"input": "ls()"}'))
    [call] = post(qwen, "/v1/responses", {"input": items}).json()["output"]
    found = [call[name] for name in ("type", "namespace", "name", "input")]
    assert found == ["custom_tool_call", "functions", "exec", "ls()"]
    prompt = qwen.prompts()[-1]
    assert '"name": "exec"' in prompt
    assert '"name": "mcp__files__patch"' in prompt
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "a.txt"}
    qwen.say(CALL % ("mcp__files__patch", '{"input": "+x"}'))
    [call] = post(qwen, "/v1/responses", {"input": [*items, call, result]}).json()["output"]
    assert [call[name] for name in ("type", "namespace", "name")] == ["custom_tool_call", "mcp__files", "patch"]
    assert "ls()" in qwen.prompts()[-1]
    assert "a.txt" in qwen.prompts()[-1]


def test_a_later_item_replaces_a_tool_and_a_conversation_stores_it(qwen):
    later = {**WAIT, "description": "Wait for a city"}
    qwen.say("ok")
    post(qwen, "/v1/responses", {"input": [*codex_items(WAIT), *codex_items(later)]})
    prompt = qwen.prompts()[-1]
    assert "Wait for a city" in prompt
    assert prompt.count('"name": "wait"') == 1
    made = httpx2.post(f"{qwen.url}/v1/conversations", json={"items": codex_items(later)}).json()
    qwen.say("ok")
    post(qwen, "/v1/responses", {"input": "Go on.", "conversation": made["id"]})
    assert "Wait for a city" in qwen.prompts()[-1]
    refused = httpx2.post(
        f"{qwen.url}/v1/responses", json={"model": "spark", "input": codex_items({"type": "computer"})}
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0].tools[0].type")


def test_messages_between_the_agents_of_a_client_reach_the_model(qwen):
    part = {"type": "input_text", "text": "The tests pass."}
    hidden = {"type": "encrypted_content", "encrypted_content": "xyz"}
    qwen.say("ok")
    message = {"type": "agent_message", "author": "/root/tester", "recipient": "/root", "content": [part, hidden]}
    answer = post(qwen, "/v1/responses", {"input": [*codex_items(WAIT), message]})
    assert "Message from /root/tester to /root:\nThe tests pass." in qwen.prompts()[-1]
    assert "input[3].content[1].encrypted_content" in answer.headers["x-tessera-ignored"]


def test_a_message_between_a_call_and_its_result_does_not_part_them(qwen):
    call = {"type": "function_call", "call_id": "c1", "name": "wait", "arguments": '{"city": "Oslo"}'}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I wait."}]}
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    other = {**call, "call_id": "c2", "arguments": '{"city": "Rome"}'}
    results = [{"type": "function_call_output", "call_id": c, "output": f"{c} done"} for c in ("c1", "c2")]
    qwen.say("ok")
    post(qwen, "/v1/responses", {"input": [*HI, thought, call, thought, other, said, *results], "tools": [WAIT]})
    prompt = qwen.prompts()[-1]
    turns = prompt.partition("Hi<|im_end|>")[2].split("<|im_start|>")[1:]
    assert [turn.partition("\n")[0] for turn in turns] == ["assistant", "user", "assistant"]
    assert all(words in turns[0] for words in ("I wait.", "Oslo", "Rome"))
    assert turns[1].index("c1 done") < turns[1].index("c2 done")


CHAT_CALLS = [
    {"id": f"c{n}", "type": "function", "function": {"name": "wait", "arguments": json.dumps({"city": city})}}
    for n, city in enumerate(("Oslo", "Rome", "Lima"))
]
NO_ARGUMENTS = [{**call, "function": {"name": "wait", "arguments": None}} for call in CHAT_CALLS]
BLOCKS = [{"type": "tool_use", "id": f"c{n}", "name": "wait", "input": {}} for n in range(3)]
RESULTS = [{"type": "tool_result", "tool_use_id": f"c{n}", "content": f"c{n} done"} for n in (2, 0, 1)]
# Three results in another order than their calls, for a template that shows no ids.
UNORDERED = {
    "/v1/chat/completions": {
        "messages": [
            *HI,
            {"role": "assistant", "content": None, "tool_calls": CHAT_CALLS},
            *({"role": "tool", "tool_call_id": f"c{n}", "content": f"c{n} done"} for n in (2, 0, 1)),
        ]
    },
    "/v1/messages": {
        "max_tokens": 9,
        "messages": [
            *HI,
            {"role": "assistant", "content": BLOCKS},
            {"role": "user", "content": [{"type": "text", "text": "All came."}, *RESULTS]},
        ],
    },
    "/v1/responses": {
        "input": [
            *HI,
            *({"type": "function_call", "call_id": f"c{n}", "name": "wait", "arguments": "{}"} for n in range(3)),
            *({"type": "function_call_output", "call_id": f"c{n}", "output": f"c{n} done"} for n in (2, 0, 1)),
        ]
    },
    "/api/chat": {
        "stream": False,
        "messages": [
            *HI,
            {"role": "assistant", "content": "", "tool_calls": NO_ARGUMENTS},
            *({"role": "Tool", "tool_call_id": f"c{n}", "content": f"c{n} done"} for n in (2, 0, 1)),
        ],
    },
}


@pytest.mark.parametrize("path", UNORDERED)
def test_results_are_shown_in_the_order_of_their_calls(qwen, path):
    qwen.say("ok")
    post(qwen, path, UNORDERED[path])
    prompt = qwen.prompts()[-1]
    found = [prompt.index(f"c{number} done") for number in range(3)]
    assert found == sorted(found)
    if path == "/v1/messages":  # text before the results comes after them: they belong to the calls
        assert prompt.index("All came.") > found[-1]


TEXTS = [{"type": "text", "text": "Summarize this file:"}, {"type": "text", "text": "def f(): pass"}]
PARTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXTS}]},
    "/v1/responses": {"input": [{"role": "user", "content": [{**part, "type": "input_text"} for part in TEXTS]}]},
}


@pytest.mark.parametrize("path", PARTS)
def test_the_parts_of_a_message_are_lines_of_their_own(qwen, path):
    """As in llama-server and vLLM. Zed, Cline and others send context and question as parts."""
    qwen.say("ok")
    post(qwen, path, PARTS[path])
    assert "Summarize this file:\ndef f(): pass<|im_end|>" in qwen.prompts()[-1]


def pictures(data):
    """A picture in the result of a tool, in each protocol, with these base64 data."""
    url = f"data:image/png;base64,{data}"
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    called = {"role": "assistant", "content": None, "tool_calls": CHAT_CALLS[:1]}
    return {
        "/v1/chat/completions": {"messages": [*HI, called, {
            "role": "tool", "tool_call_id": "c0", "content": [{"type": "image_url", "image_url": {"url": url}}]}]},
        "/v1/responses": {"input": [*HI, UNORDERED["/v1/responses"]["input"][1], {
            "type": "function_call_output", "call_id": "c0", "output": [
                {"type": "input_image", "image_url": url}]}]},
        "/v1/messages": {"max_tokens": 9, "messages": [*HI, {"role": "assistant", "content": BLOCKS[:1]}, {
            "role": "user", "content": [{"type": "tool_result", "tool_use_id": "c0", "content": [image]}]}]},
        "/api/chat": {"stream": False, "messages": [
            *HI, {"role": "assistant", "tool_calls": [{"function": {"name": "wait", "arguments": {}}}]},
            {"role": "tool", "content": "", "images": [data]}]},
    }  # fmt: skip


@pytest.mark.parametrize("path", pictures(""))
def test_base64_may_be_wrapped_into_lines_and_is_checked(qwen, path):
    qwen.say("ok")
    post(qwen, path, pictures(WRAPPED)[path])
    for wrong in ("%%%", "é", "abc"):
        answer = httpx2.post(f"{qwen.url}{path}", json={"model": "spark", **pictures(wrong)[path]})
        assert answer.status_code == 400, answer.text
        assert "not valid base64" in answer.text


def test_a_conversation_with_pictures_goes_on_with_a_model_that_reads_text(qwen):
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    shown = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]}
    qwen.say("ok")
    earlier = [shown, {"role": "assistant", "content": "A dot."}, {"role": "user", "content": "Are you sure?"}]
    answer = post(qwen, "/v1/chat/completions", {"messages": earlier})
    assert "What is this?\n[image that this model cannot see]" in qwen.prompts()[-1]
    assert "of earlier messages were left out" in answer.json()["tessera"]["notes"][0]
    qwen.say("ok")
    post(qwen, "/v1/chat/completions", {"messages": [*earlier[:2], shown]})
    assert len(qwen.asked()[-1]["images"]) == 1  # a real runner refuses the picture of the question itself


PDF = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjQK/w=="}
ADDRESS = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
QUESTION = {"type": "text", "text": "What is it?"}
ANSWER = {"role": "assistant", "content": "A letter."}


def unread(path):
    """A message with what cannot be read here, the same in the result of a tool, and the field of each."""
    if path == "/v1/messages":
        source = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK/w=="}
        document = {"type": "document", "source": source}
        result = {"type": "tool_result", "tool_use_id": "c0", "is_error": True, "content": [document]}
        shown, called = (
            {"role": "user", "content": [QUESTION, document]},
            {"role": "assistant", "content": BLOCKS[:1]},
        )
        return {"max_tokens": 9}, "messages", shown, [called, {"role": "user", "content": [result]}]
    if path == "/v1/responses":
        content = [{"type": "input_text", "text": "What is it?"}, {"type": "input_file", **PDF}]
        output = [{"type": "input_image", "image_url": "https://example.com/a.png"}]
        call = UNORDERED["/v1/responses"]["input"][1]
        result = {"type": "function_call_output", "call_id": "c0", "output": output}
        return {}, "input", {"role": "user", "content": content}, [call, result]
    shown = {"role": "user", "content": [QUESTION, {"type": "file", "file": PDF}]}
    called = {"role": "assistant", "content": None, "tool_calls": CHAT_CALLS[:1]}
    return {}, "messages", shown, [called, {"role": "tool", "tool_call_id": "c0", "content": [ADDRESS]}]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_session_with_a_part_that_cannot_be_read_goes_on_after_the_refusal(qwen, path):
    """Programs repeat the conversation, so a PDF file that Claude Code read would end every later request."""
    more, field, shown, of_tool = unread(path)
    refused = httpx2.post(f"{qwen.url}{path}", json={"model": "spark", **more, field: [shown]})
    assert refused.status_code == 400
    qwen.say("ok")
    answer = post(qwen, path, {**more, field: [shown, ANSWER, {"role": "user", "content": "And now?"}]})
    assert "What is it?\n[part that cannot be read here]" in qwen.prompts()[-1]
    note = f"parts of earlier messages that cannot be read here were left out: {field}[0].content[1]"
    assert note in answer.json()["tessera"]["notes"]
    qwen.say("ok")
    answer = post(qwen, path, {**more, field: [*HI, *of_tool]})
    assert "[part that cannot be read here]" in qwen.prompts()[-1]
    assert ("Error:\n[part" in qwen.prompts()[-1]) == (path == "/v1/messages")
    assert "left out: " in answer.text


def test_a_wrapped_file_is_read(qwen):
    qwen.say("ok")
    data = base64.encodebytes(b"The password is swordfish. " * 9).decode()
    file = {"type": "file", "file": {"filename": "a.txt", "file_data": f"data:text/plain;base64,{data}"}}
    post(qwen, "/v1/chat/completions", {"messages": [{"role": "user", "content": [file]}]})
    assert qwen.prompts()[-1].count("swordfish") == 9


NULLS = [
    ("/v1/chat/completions", {"messages": HI, "stream_options": {"include_usage": None}, "stream": True}),
    ("/api/chat", {"messages": None}),
    ("/api/generate", {"prompt": None, "system": None, "options": {"num_ctx": None}}),
    ("/tokenize", {"content": "Hi", "parse_special": None, "with_pieces": None}),
    ("/completion", {"prompt": "Hi", "return_tokens": None, "n_probs": None}),
    ("/apply-template", {"messages": HI, "add_generation_prompt": None}),
]


@pytest.mark.parametrize(("path", "body"), NULLS, ids=[path for path, _ in NULLS])
def test_null_is_the_same_as_a_missing_field(qwen, path, body):
    """Programs in Go and C++ write null for what they leave out, and the original servers read it as that."""

    def answer(sent):
        qwen.say("ok")
        return post(qwen, path, sent)

    given = {key: value for key, value in body.items() if value is not None and key != "stream_options"}
    with_null, without = answer(body), answer(given)
    assert with_null.headers.get("content-type") == without.headers.get("content-type")
    if path in {"/tokenize", "/apply-template"}:
        assert with_null.json() == without.json()


def test_anthropics_clients_find_the_request_id_and_documents_of_blocks_are_read(qwen):
    source = {"type": "content", "content": [{"type": "text", "text": "Paragraph one."}]}
    document = {"type": "document", "title": "Notes", "source": source}
    whole = {"type": "document", "source": {"type": "content", "content": "All in one."}}
    found = {"type": "search_result", "source": "s", "title": "t", "content": "plain words"}
    qwen.say("ok")
    content = [document, whole, found, {"type": "text", "text": "So?"}]
    answer = post(qwen, "/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": content}]})
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert "Notes\n\nParagraph one.\n\nAll in one.\n\nt, s\n\nplain words\n\nSo?" in qwen.prompts()[-1]
    refused = httpx2.post(f"{qwen.url}/v1/messages", json={})
    assert refused.headers["request-id"].startswith("req_")


def test_the_highest_effort_of_some_clients_is_known(qwen):
    qwen.say("ok")
    post(qwen, "/v1/chat/completions", {"messages": HI, "reasoning_effort": "ultra"})
    qwen.say("ok")
    post(qwen, "/v1/responses", {"input": "Hi", "reasoning": {"effort": "ultra"}})


def test_stages_and_stops_of_programs_for_role_play(qwen):
    """SillyTavern lists all of llama-server's stages, and a stop text for each person."""
    samplers = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "adaptive_p", "temperature"]
    stops = [f"\nPerson {number}:" for number in range(40)]
    qwen.say("ok")
    post(qwen, "/completion", {"prompt": "Hi", "samplers": samplers, "stop": stops, "n_predict": 3})
    asked = qwen.asked()[-1]
    assert "adaptive_p" not in asked["sampling"]["order"]
    assert asked["sampling"]["order"][-1] == "temperature"
    assert len(asked["stop"]) == 40


def test_ollamas_list_says_what_its_models_can_do(qwen):
    listed = httpx2.get(f"{qwen.url}/api/tags", headers={"authorization": f"Bearer {TOKEN}"}).json()["models"]
    shown = httpx2.post(f"{qwen.url}/api/show", json={"model": listed[0]["name"]}).json()
    assert listed[0]["capabilities"] == shown["capabilities"]
    assert "completion" in shown["capabilities"]

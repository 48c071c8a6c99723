"""Requests in the formats of Continue and Cline, from their sources (Continue d0a3c0b, Cline 21cb8d2).

Both send more than the official clients: headers of several providers, histories with blank texts and empty
reasoning, an `undefined` key, dozens of tools, options of a model file. None of this may change the response. The
programs themselves run in tests/optin/test_real_clients.py.
"""

import json

import httpx2
import pytest

from tests.support.fakes.scripted import ScriptedServer

FIM_MARKS = {"pre": "<|fim_prefix|>", "suf": "<|fim_suffix|>", "mid": "<|fim_middle|>"}
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"filepath": "a.py"}}\n</tool_call>'
# Continue sends the key in three headers, for three kinds of server.
CONTINUE = {"authorization": "Bearer unused", "api-key": "unused", "x-api-key": "unused"}
NO_KEY = {"authorization": "Bearer undefined"}
CLINE = {"authorization": "Bearer unused", "user-agent": "ai-sdk/openai-compatible/3.0.37 runtime/bun/1.3.13"}
READ = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file",
        "parameters": {
            "type": "object",
            "required": ["filepath"],
            "properties": {"filepath": {"type": "string", "description": "Its path"}},
        },
    },
}
# A schema generated from TypeScript types: unions with null, safe-integer limits, closed objects.
READ_MANY = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read parts of files",
        "parameters": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "filepath": {"type": "string", "minLength": 1},
                "start_line": {
                    "anyOf": [
                        {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
                        {"type": "null"},
                    ]
                },
                "ranges": {"type": "array", "items": {"type": "object", "additionalProperties": False}},
            },
            "required": ["filepath"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    """A model with fill-in-the-middle support."""
    server = ScriptedServer(tmp_path_factory.mktemp("coder"), fim=FIM_MARKS)
    yield server
    server.stop()


def post(server, path, body, headers, ignored=""):
    """The response to a request; `ignored` is the expected list of ignored fields."""
    answer = httpx2.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-tessera-ignored", "") == ignored
    return answer


def events(answer):
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def lines(answer):
    return [json.loads(line) for line in answer.text.splitlines() if line]


def history(reasoning, blank, **result):
    """A conversation after its first tool call."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "read_file", "arguments": '{"filepath":"a.py"}'},
    }
    return [
        {"role": "system", "content": "You are in agent mode."},
        {"role": "user", "content": "What is in a.py?"},
        {"role": "assistant", "content": blank, "tool_calls": [call], **reasoning},
        {"role": "tool", "content": "A = 1", "tool_call_id": "call_1", **result},
    ]


@pytest.mark.parametrize(
    ("headers", "messages", "options"),
    [
        (CONTINUE, history({}, " "), {"max_tokens": 2000, "tools": [READ], "parallel_tool_calls": False}),
        (CONTINUE, history({"reasoning_content": ""}, " "), {"max_tokens": 2000, "tools": [READ]}),
        (CONTINUE, history({"reasoning": "I read it."}, ""), {"stop": ["<|im_end|>"], "tools": [READ]}),
        (CLINE, history({}, None), {"tools": [READ_MANY], "tool_choice": "auto", "reasoning_effort": "low"}),
        (CLINE, history({"reasoning_content": "I read it."}, None), {"tools": [READ_MANY], "tool_choice": "auto"}),
    ],
    ids=["continue", "continue-empty-reasoning", "continue-reasoning", "cline", "cline-reasoning"],
)
def test_a_turn_behind_a_call(qwen, headers, messages, options):
    qwen.say("<think>\nHm.\n</think>\n\n", "It sets ", "A.")
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    got = events(
        post(qwen, "/v1/chat/completions", {"model": "spark", "messages": messages, **options, **usage}, headers)
    )
    deltas = [event["choices"][0]["delta"] for event in got if event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "It sets A."
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas).strip() == "Hm."
    # Cline reads usage from the last event, which has no choice; Continue stores it for the end.
    assert got[-1]["choices"] == []
    assert got[-1]["usage"]["prompt_tokens"] > 0
    assert not any(event.get("usage") for event in got[:-1])
    prompt = qwen.prompts()[-1]
    assert "A = 1" in prompt
    assert '"filepath"' in prompt


@pytest.mark.parametrize("tool", [READ, READ_MANY], ids=["continue", "cline"])
def test_a_call_comes_in_pieces_that_join(qwen, tool):
    qwen.say(*[CALL[at : at + 7] for at in range(0, len(CALL), 7)])
    body = {
        "model": "spark",
        "messages": [{"role": "user", "content": "Read a.py"}],
        "tools": [tool],
        "stream": True,
    }
    choices = [event["choices"][0] for event in events(post(qwen, "/v1/chat/completions", body, CONTINUE))]
    parts = [part for choice in choices for part in choice["delta"].get("tool_calls") or []]
    assert [part["index"] for part in parts] == [0] * len(parts)
    assert parts[0]["id"]
    assert parts[0]["function"]["name"] == "read_file"
    assert json.loads("".join(part["function"].get("arguments") or "" for part in parts)) == {"filepath": "a.py"}
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_continue_at_ollamas_routes(qwen):
    """Continue sends the model as `name`, reads `template` and `parameters`, and always sends its options."""
    about = post(qwen, "/api/show", {"name": "spark"}, {}).json()
    assert isinstance(about.get("template"), str)
    assert isinstance(about.get("parameters", ""), str)
    names = [model["name"] for model in httpx2.get(f"{qwen.url}/api/tags").json()["models"]]
    assert "spark:latest" in names
    call = {"function": {"name": "read_file", "arguments": {"filepath": "a.py"}}}
    body = {
        "model": "spark:latest",
        "messages": [
            {"role": "user", "content": "What is in a.py?"},
            {"role": "assistant", "content": " ", "tool_calls": [call]},
            {"role": "tool", "content": "A = 1"},
        ],
        "options": {"temperature": 0.5, "num_predict": 100, "stop": ["<|im_end|>"], "num_ctx": 1024},
        "think": True,
        "keep_alive": 1800,
        "stream": True,
    }
    qwen.say("<think>\nHm.\n</think>\n\n", "It sets A.")
    got = lines(post(qwen, "/api/chat", body, {}))
    assert "".join(one["message"]["content"] for one in got) == "It sets A."
    assert "".join(one["message"].get("thinking") or "" for one in got).strip() == "Hm."
    assert "A = 1" in qwen.prompts()[-1]
    qwen.say(CALL)
    asked = {**body, "messages": [{"role": "user", "content": "Read a.py"}], "tools": [READ]}
    [called] = [
        one["message"]["tool_calls"]
        for one in lines(post(qwen, "/api/chat", asked, {}))
        if one["message"].get("tool_calls")
    ]
    assert called[0]["function"]["arguments"] == {"filepath": "a.py"}
    vectors = post(qwen, "/api/embed", {"model": "spark", "input": ["one", "two"]}, {}).json()["embeddings"]
    assert len(vectors) == 2


def test_cline_at_ollamas_routes(qwen):
    """Tool results name their tool; call ids are the client's own; the unsupported `tool_choice` is reported."""
    call = {"id": "x1", "type": "function", "function": {"name": "read_file", "arguments": {"filepath": "a.py"}}}
    body = {
        "model": "spark",
        "messages": [
            {"role": "system", "content": "You are Cline."},
            {"role": "user", "content": "What is in a.py?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "x1", "tool_name": "read_file", "content": "A = 1"},
        ],
        "tools": [READ_MANY],
        "tool_choice": "auto",
        "think": False,
        "options": {"num_ctx": 32768},
        "stream": True,
    }
    qwen.say("It sets A.")
    got = lines(post(qwen, "/api/chat", body, CLINE, ignored="tool_choice"))
    assert "".join(one["message"]["content"] for one in got) == "It sets A."
    assert got[-1]["done"] is True
    assert got[-1]["done_reason"] == "stop"
    assert got[-1]["prompt_eval_count"] > 0
    assert "A = 1" in qwen.prompts()[-1]


def test_continue_at_llama_servers_route(qwen):
    """Continue's provider `llama.cpp` without a key sends the word `undefined`."""
    qwen.say("Hello", " there")
    body = {
        "model": "spark", "prompt": "Hi", "stream": True, "n_predict": 20, "frequency_penalty": 0.1,
        "presence_penalty": 0.1, "min_p": 0.1, "mirostat": 0, "stop": ["\n\n"], "top_k": 20, "top_p": 0.9,
        "temperature": 0.2,
    }  # fmt: skip
    got = events(post(qwen, "/completion", body, NO_KEY))
    assert "".join(event["content"] for event in got) == "Hello there"


def test_models_are_found_where_each_looks(qwen):
    for path, names in (
        ("/v1/models", lambda found: [one["id"] for one in found["data"]]),
        ("/api/v0/models", lambda found: [one["id"] for one in found["data"]]),
        ("/api/tags", lambda found: [one["name"].removesuffix(":latest") for one in found["models"]]),
    ):
        answer = httpx2.get(f"{qwen.url}{path}", headers=CONTINUE)
        assert answer.status_code == 200
        assert "spark" in names(answer.json())


def test_continue_fills_a_gap(coder):
    """Autocompletion with a suffix, through Mistral's route and through Ollama's."""
    coder.say("return a", " + b")
    fim = {
        "model": "spark", "prompt": "def add(a, b):\n    ", "suffix": "\n", "max_tokens": 64, "temperature": 0.01,
        "stop": ["<|endoftext|>", "\n\n"], "stream": True,
    }  # fmt: skip
    got = events(post(coder, "/v1/fim/completions", fim, {**CONTINUE, "accept": "application/json"}))
    assert (
        "".join(event["choices"][0]["delta"].get("content") or "" for event in got if event["choices"])
        == "return a + b"
    )
    coder.say("return a", " + b")
    options = {"temperature": 0.01, "num_predict": 64, "stop": ["\n\n"], "num_ctx": 1024}
    body = {"model": "spark", "prompt": "def add(a, b):\n    ", "suffix": "\n", "options": options}
    got = lines(post(coder, "/api/generate", {**body, "keep_alive": 1800, "stream": True}, {}))
    assert "".join(one["response"] for one in got) == "return a + b"


ZED_STOPS = ["<|endoftext|>", *FIM_MARKS.values()]


@pytest.mark.parametrize(
    ("prompt", "stop"),
    [
        ("<|fim_prefix|>a = <|fim_suffix|>\n<|fim_middle|>", ZED_STOPS),
        # A next edit: the lines around the cursor once more, rewritten. Its marks are text, so nothing is cut.
        ("<|fim_suffix|>\n<|fim_prefix|><filename>a.py\n<|marker_1|>\na = \n<|marker_2|>\n<|fim_middle|>", []),
    ],
    ids=["gap", "next edit"],
)
def test_zed_formats_its_prompts_itself(coder, prompt, stop):
    """Zed 1.0 (edit_prediction/src/open_ai_compatible.rs) sends no temperature, and reads each of these fields."""
    coder.say("1", "\n")
    body = {"model": "spark", "prompt": prompt, "max_tokens": 64, "stop": stop}
    found = post(coder, "/v1/completions", body, {"authorization": "Bearer unused"}).json()
    assert {"id", "object", "created", "model", "choices", "usage"} <= set(found)
    assert found["choices"][0]["text"] == "1\n"
    asked = coder.asked()[-1]
    assert asked["prompt"] == prompt
    assert asked["sampling"].get("temperature") == 0.0, "the same keystroke, the same suggestion"
    assert asked.get("keep_special", False) is bool(stop), "marks that end the text are found only as text"
    plain = {**body, "prompt": "a = ", "stop": []}
    coder.say("1")
    post(coder, "/v1/completions", plain, {})
    assert coder.asked()[-1]["sampling"].get("temperature") != 0.0


def test_llama_vim_gets_the_lines_of_its_block(coder):
    """The first line is complete however slow; a line with less indentation than the cursor's ends the text."""
    body = {
        "id_slot": 0, "input_prefix": "def f():\n", "input_suffix": "\n", "input_extra": [], "prompt": "    a",
        "n_predict": 64, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.9, "stream": False,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
    }  # fmt: skip
    unknown = "id_slot, t_max_prompt_ms"
    coder.say(" = ", "1\n", "  ", "  b = 2", "\n\n", "def g():\n", "    pass")
    found = post(coder, "/infill", body, {}, ignored=unknown).json()
    assert found["content"] == " = 1\n    b = 2"
    assert (found["stop_type"], found["tokens_predicted"]) == ("limit", 6), "not 0: the editor shows it"
    coder.say(*" = 1; b = 2\n    c = 3\n    d = 4", delay_s=0.005)
    hasty = {**body, "t_max_predict_ms": 1e-3}
    assert post(coder, "/infill", hasty, {}, ignored=unknown).json()["content"].rstrip() == " = 1; b = 2"

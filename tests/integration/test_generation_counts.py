"""Every generation is counted once, whether the model, a limit, the parser or a client ends it."""

from pathlib import Path

import httpx2
import pytest

from tests.support.fakes.scripted import ScriptedServer
from tests.support.servers import wait_for

TEMPLATES = Path(__file__).resolve().parents[1] / "data" / "templates"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    template = (TEMPLATES / "Qwen-Qwen3-0.6B.jinja").read_text("utf-8")
    marks = {"pre": "<|fim_prefix|>", "suf": "<|fim_suffix|>", "mid": "<|fim_middle|>"}
    server = ScriptedServer(tmp_path_factory.mktemp("counts") / "home", template=template, fim=marks)
    yield server
    server.stop()


@pytest.fixture
def counted(server):
    """The model's answers and generated tokens since the test began."""

    def now():
        use = {u.model: u for u in server.state.metrics.use()}.get("spark")
        return (use.requests, use.generated_tokens) if use else (0, 0)

    before = now()
    return lambda: tuple(a - b for a, b in zip(now(), before, strict=True))


def post(server, route, **body):
    answered = httpx2.post(server.url + route, json={"model": "spark", **body}, timeout=60)
    assert answered.status_code == 200, answered.text
    return answered.json()


@pytest.mark.parametrize("choices", [1, 3])
def test_an_answer_is_counted_once_for_each_choice(server, counted, choices):
    for _ in range(choices):
        server.say("one ", "two ", "three")
    post(server, "/v1/chat/completions", messages=[{"role": "user", "content": "Count"}], n=choices)
    wait_for(lambda: counted()[0] >= choices, what="the count")
    assert counted() == (choices, 3 * choices)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Count"}], "stream": True}),
        ("/v1/completions", {"prompt": "Count", "stream": True}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Count"}], "max_tokens": 500, "stream": True}),
        ("/v1/responses", {"input": "Count", "stream": True}),
        ("/api/chat", {"messages": [{"role": "user", "content": "Count"}]}),
        ("/api/generate", {"prompt": "Count", "raw": True}),
        ("/completion", {"prompt": "Count", "stream": True}),
        ("/infill", {"input_prefix": "Count", "input_suffix": "", "stream": True}),
    ],
)
def test_what_was_written_for_a_client_that_left_is_counted(server, counted, route, body):
    server.say(*["word "] * 400, delay_s=0.02)
    with httpx2.stream("POST", server.url + route, json={"model": "spark", **body}, timeout=60) as answer:
        text = ""
        for piece in answer.iter_text():
            text += piece
            if text.count("word") >= 3:
                break
    wait_for(lambda: counted()[0] == 1, what="the count of an answer that nobody waits for")
    assert 3 <= counted()[1] < 400
    server.forget()


def test_what_a_time_limit_cut_off_is_counted(server, counted):
    server.say(*["word\n"] * 500, delay_s=0.02)  # the limit acts after the first line only
    post(server, "/completion", prompt="Count", t_max_predict_ms=1500)
    wait_for(lambda: counted()[0] >= 1, what="the count")
    assert counted()[0] == 1
    assert 3 <= counted()[1] < 500
    server.forget()


def test_an_answer_that_ends_with_its_first_call_is_counted_as_one(server, counted):
    pieces = [CALL, "\n", *CALL]  # the text after the first call takes some seconds
    server.say(*pieces, delay_s=0.05)
    asked = {"messages": [{"role": "user", "content": "Add"}], "tools": [ADD], "parallel_tool_calls": False}
    told = post(server, "/v1/chat/completions", **asked)
    assert len(told["choices"][0]["message"]["tool_calls"]) == 1
    wait_for(lambda: counted()[0] >= 1, what="the count")
    assert counted()[0] == 1
    assert told["usage"]["completion_tokens"] <= counted()[1] < len(pieces)
    server.forget()

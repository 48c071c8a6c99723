"""Fill-in-the-middle with the bundled model through a real server, as editors use it."""

from pathlib import Path

import pytest

from app.client import ApiError, Client
from app.code import fim_bench
from app.server_process import ServerProcess
from tests.support.servers import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

PREFIX = 'def read_lines(path):\n    """Read the lines of a file."""\n    with open(path) as f:\n        '
SUFFIX = "\n    return lines\n"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_HOME", str(tmp_path_factory.mktemp("fim-home")))
        server = ServerProcess()
        client = server.connect(Client)
    yield client
    client.close()
    server.stop()


def post(client: Client, path, body):
    return client.post(path, dict, body)


def test_every_door_gives_the_same_completion(client: Client):
    options = {"max_tokens": 12, "temperature": 0}
    infill = post(
        client, "/infill", {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 12, "temperature": 0}
    )
    model = infill["model"]
    completion = client.post(
        "/v1/completions", dict, {"model": model, "prompt": PREFIX, "suffix": SUFFIX, **options}
    )
    mistral = client.post(
        "/v1/fim/completions", dict, {"model": model, "prompt": PREFIX, "suffix": SUFFIX, **options}
    )
    streamed = "".join(
        event.get("content", "")
        for event in client.stream(
            "/infill", dict, {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 12, "stream": True}
        )
    )
    chunks = "".join(
        choice["delta"].get("content", "")
        for event in client.stream(
            "/v1/fim/completions",
            dict,
            {"model": model, "prompt": PREFIX, "suffix": SUFFIX, "stream": True, **options},
        )
        for choice in event["choices"]
    )
    marked = f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"
    stops = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
    zed = post(client, "/v1/completions", {"model": model, "prompt": marked, "max_tokens": 12, "stop": stops})
    text = infill["content"]
    assert text.strip()
    assert text == zed["choices"][0]["text"], "Zed writes the marks itself and sends no temperature"
    assert text == completion["choices"][0]["text"] == mistral["choices"][0]["message"]["content"]
    assert text == streamed == chunks
    assert infill["tokens_evaluated"] > 12
    assert infill["tokens_predicted"] <= 12


def test_the_suffix_changes_the_answer(client: Client):
    """Asserts different answers; a server that ignores the suffix would repeat one."""
    answers = {
        post(client, "/infill", {"input_prefix": "x = [1, 2", "input_suffix": suffix, "n_predict": 8})["content"]
        for suffix in (")\nprint(x)\n", '"""\n    return total\n', "\n\nclass Foo:\n")
    }
    assert len(answers) > 1


def test_marks_in_the_code_do_not_end_its_section(client: Client):
    plain = post(client, "/infill", {"input_prefix": "a <|fim_middle|> b", "n_predict": 1})
    marked = post(client, "/infill", {"input_prefix": "a <|fim_niddle|> b", "n_predict": 1})
    assert plain["tokens_evaluated"] >= marked["tokens_evaluated"] - 2 > 8


def test_too_much_text_is_shortened_for_editors_and_refused_for_the_others(client: Client):
    long = "".join(f"value_{n} = {n}\n" for n in range(3000))
    body = {"input_prefix": long, "input_suffix": long, "input_extra": [{"filename": "b.py", "text": long}]}
    answer = post(client, "/infill", {**body, "n_predict": 4})
    assert answer["truncated"] is True
    assert 700 < answer["tokens_evaluated"] < 1024
    for path, prompt in (("/v1/completions", long), ("/v1/fim/completions", long)):
        with pytest.raises(ApiError) as caught:
            post(client, path, {"model": answer["model"], "prompt": prompt, "suffix": long, "max_tokens": 4})
        assert caught.value.status == 400
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.facts["context_tokens"] == 1024
    with pytest.raises(ApiError) as caught:
        post(client, "/v1/completions", {"model": answer["model"], "prompt": [1, 2], "suffix": "x"})
    assert caught.value.param == "suffix"


def test_an_editor_gets_the_fields_and_limits_it_asks_for(client: Client):
    fields = ["content", "timings/prompt_n", "tokens_cached", "no/such"]
    answer = post(
        client,
        "/infill",
        {"input_prefix": PREFIX, "n_predict": 0, "response_fields": fields, "samplers": ["top_k"]},
    )
    assert set(answer) == set(fields) - {"no/such"}
    assert answer["content"] == ""
    again = post(client, "/infill", {"input_prefix": PREFIX, "n_predict": 0, "response_fields": fields})
    assert again["timings/prompt_n"] == 1
    stopped = client.post(
        "/infill",
        dict,
        {"input_prefix": "def f():\n    return", "n_predict": 40, "stop": ["\n"], "ignore_eos": True},
    )
    assert "\n" not in stopped["content"]


def test_typing_keeps_the_prompt_in_the_cache(client: Client):
    """At least 95 % of the prompt's tokens, although every keystroke cancels the previous request."""
    source = Path(fim_bench.__file__)
    result = fim_bench.run(client, source.read_text(), source.name, count=40)
    assert result.answered == 40
    assert result.mean_prompt_tokens > 400
    assert result.reuse_frac >= 0.95


def metric(client: Client, name: str) -> float:
    lines = client._wire.ask("GET", "/metrics", None, {}, 60, 60).content.decode().splitlines()
    return sum(float(line.split(" ")[1]) for line in lines if line.startswith(name))


def test_leaving_ends_the_work(client: Client):
    """Asserts by counting tokens that a cancelled answer stops long before its end."""
    tokens, made = 900, []
    endless = {"input_prefix": PREFIX, "n_predict": tokens, "ignore_eos": True, "stream": True}
    for _ in range(5):  # on a busy machine the answer may end before this program cancels it
        before = metric(client, "tessera_generated_tokens_total")
        events = client.stream("/infill", dict, endless)
        next(events)
        events.close()
        wait_for(lambda: not metric(client, "tessera_requests_active "), what="the end of the work")
        made.append(metric(client, "tessera_generated_tokens_total") - before)
        if made[-1] < tokens / 2:
            return
    pytest.fail(f"so many tokens were made for a client that had left: {made}")

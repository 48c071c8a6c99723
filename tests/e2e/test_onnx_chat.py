"""The bundled model converted to ONNX, with the same server and clients as its GGUF."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.support.late import ollama, openai
from tests.support.servers import ROOT, RunningServer, wait_for

pytestmark = pytest.mark.e2e
ASK = [{"role": "user", "content": "What is a tessera?"}]


@pytest.fixture(scope="module")
def onnx_server(tmp_path_factory):
    home = tmp_path_factory.mktemp("onnx-home")
    env = {**os.environ, "TESSERA_HOME": str(home)}
    made = subprocess.run(
        [sys.executable, "-m", "app", "onnx", "convert", "spark", "--json"], cwd=ROOT, env=env, capture_output=True
    )
    assert made.returncode == 0, made.stderr.decode()
    server = RunningServer(home)
    server.model = json.loads(made.stdout)["model"]
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(onnx_server):
    with openai.OpenAI(base_url=f"{onnx_server.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def test_openai_chat_streams_and_agrees_with_the_gguf_at_first(onnx_server, client):
    assert onnx_server.model in {m.id for m in client.models.list()}
    answers = {}
    for model in ("spark", onnx_server.model):
        stream = client.chat.completions.create(
            model=model, messages=ASK, temperature=0, max_tokens=24, stream=True, logprobs=True, top_logprobs=3
        )
        tokens = [t for chunk in stream for c in chunk.choices if c.logprobs for t in c.logprobs.content or ()]
        answers[model] = tokens
        assert len(tokens) == 24
    first = [answers[model][0] for model in answers]
    assert first[0].token == first[1].token
    assert abs(first[0].logprob - first[1].logprob) < 0.1


def test_structured_output_and_tools(onnx_server, client):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    answer = client.chat.completions.create(
        model=onnx_server.model,
        messages=ASK,
        max_tokens=60,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema | {"additionalProperties": False}},
        },
    )
    assert isinstance(json.loads(answer.choices[0].message.content)["n"], int)


def test_the_other_clients(onnx_server):
    import anthropic  # takes 1 s, which every collecting process would spend

    with anthropic.Anthropic(base_url=onnx_server.url, api_key="unused", max_retries=0) as claude:
        said = claude.messages.create(model=onnx_server.model, max_tokens=8, messages=ASK)
        assert said.content[0].text
    llama = ollama.Client(host=onnx_server.url)
    told = llama.chat(onnx_server.model, messages=ASK, options={"num_predict": 8})
    llama._client.close()
    assert told.message.content


def test_the_terminal(onnx_server):
    done = subprocess.run(
        [sys.executable, "-m", "app", "chat", onnx_server.model, "-p", "Hello", "--max-tokens", "8", "--json"],
        cwd=ROOT,
        env={**os.environ, "TESSERA_HOME": str(onnx_server.home)},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["answer"]


def test_a_killed_runner_ends_its_request_only(onnx_server, client):
    client.chat.completions.create(model=onnx_server.model, messages=ASK, max_tokens=1)
    client.chat.completions.create(model="spark", messages=ASK, max_tokens=1)
    runner = next(p for p in onnx_server.runners() if "onnx" in p.cmdline())
    os.kill(runner.pid, signal.SIGKILL)
    wait_for(lambda: not runner.is_running() or runner.status() == "zombie", what="the end of the runner")
    assert client.chat.completions.create(model="spark", messages=ASK, max_tokens=2).choices
    patient = client.with_options(max_retries=4)  # the first attempt may reach the dead runner and fail
    assert patient.chat.completions.create(model=onnx_server.model, messages=ASK, max_tokens=2).choices


def test_the_placement_card_gives_reasons(onnx_server):
    request = urllib.request.Request(
        f"{onnx_server.url}/tessera/v1/models/{onnx_server.model}/placement?mode=quiet",
        headers={"authorization": f"Bearer {onnx_server.token}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        card = json.load(response)
    assert card["placement"]["backend"] == "onnx:CPUExecutionProvider"
    assert any("NPU" in reason or "CPU" in reason for reason in card["placement"]["reasons"])
    assert card["fit"]["fits"]

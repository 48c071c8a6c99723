"""A real llama-server as an upstream and as an added engine: the same answers through Tessera as directly.

    LLAMA_SERVER=/path/to/llama-server pytest -o addopts= tests/optin/test_real_llama_server.py

Without the variable, `llama-server` on PATH is used.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

import httpx2
import numpy as np
import pytest

from engine.core.addresses import free_port
from engine.core.types import GenerationRequest
from quantize.files.gguf_file import read_gguf
from quantize.files.gguf_write import GgufWriter, TensorSlot, copied_metadata
from quantize.ggml_types import GgmlType
from quantize.native.blocks import dequantize_rows, quantize_rows
from quantize.native.source_weights import SourceWeights, quantizable
from tests.bench.recovery import low_rank, write_adapter
from tests.support.runner_calls import CHAT, EXACT, answered, with_runner
from tests.support.runner_calls import GREEDY as LIKELIEST_TOKEN
from tests.support.servers import ROOT, RunningServer, runs, wait_for

PROGRAM = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no llama-server")
SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"
KEY, CONTEXT = "sk-of-a-test", 1024
PROMPT = "Tell me about rain."
GREEDY = {"temperature": 0, "max_tokens": 24}
TOLERANCE = 0.001  # of a log-probability: kernels add up in different orders


class LlamaServer:
    def __init__(self, folder, *more, model=SPARK):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = (folder / "llama-server.log").open("wb")
        command = [
            PROGRAM,
            "-m",
            model,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--alias",
            "spark",
            "--api-key",
        ]
        command += [KEY, "-c", str(2 * CONTEXT), "-np", "2", "-t", "1", "--slots", "--jinja", "--no-warmup", *more]
        self.process = subprocess.Popen(list(map(str, command)), stdout=self.log, stderr=self.log)
        self.http = httpx2.Client(base_url=self.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60)
        wait_for(self._ready, 60, "llama-server")

    def _ready(self):
        assert self.process.poll() is None, "it ended"
        try:
            return self.http.get("/health").status_code == 200
        except httpx2.HTTPError:
            return False

    def working(self):
        return any(slot["is_processing"] for slot in self.http.get("/slots").json())

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.http.close()
        self.log.close()


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    running = RunningServer(
        tmp_path_factory.mktemp("gateway"), env={"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    )
    head = {"authorization": f"Bearer {running.token}"}
    with httpx2.Client(base_url=running.url, headers=head, timeout=90) as client:
        yield client
    running.stop()


@pytest.fixture
def there(http, tmp_path):
    llama = LlamaServer(tmp_path)
    row = http.put("/tessera/v1/upstreams/desk", json={"url": llama.url, "key": KEY}).json()
    assert (row["kind"], row["state"]) == ("llama-server", "ok")
    http.put("/tessera/v1/upstream-rules", json={"model": "desk/*", "upstream": "desk"}).raise_for_status()
    yield llama
    llama.stop()
    http.delete("/tessera/v1/upstreams/desk")


def ask(client, model, **more):
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], **GREEDY, **more}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def text(answer):
    return answer.json()["choices"][0]["message"]["content"]


def test_it_says_through_every_protocol_what_it_says_straight(http, there):
    straight = ask(there.http, "spark")
    said, usage = text(straight), straight.json()["usage"]
    assert said
    here = ask(http, "desk/spark")
    assert text(here) == said
    assert here.json()["usage"]["prompt_tokens"] == usage["prompt_tokens"]
    assert here.json()["usage"]["completion_tokens"] == usage["completion_tokens"]
    lines = [x[6:] for x in ask(http, "desk/spark", stream=True).text.splitlines() if x.startswith("data: {")]
    pieces = [json.loads(x)["choices"][0]["delta"].get("content") or "" for x in lines]
    assert "".join(pieces) == said
    assert sum(map(bool, pieces)) > 4, "as it was made, not in one piece"
    talk = [{"role": "user", "content": PROMPT}]
    anthropic = {"model": "desk/spark", "messages": talk, **GREEDY}
    assert http.post("/v1/messages", json=anthropic).json()["content"][0]["text"] == said
    ollama = {
        "model": "desk/spark",
        "messages": talk,
        "stream": False,
        "options": {"temperature": 0, "num_predict": 24},
    }
    assert http.post("/api/chat", json=ollama).json()["message"]["content"] == said
    responses = {"model": "desk/spark", "input": PROMPT, "temperature": 0, "max_output_tokens": 24}
    made = http.post("/v1/responses", json=responses).json()
    assert made["output"][-1]["content"][0]["text"] == said


def test_a_schema_holds_there(http, there):
    schema = {"type": "object", "properties": {"sky": {"enum": ["grey", "blue"]}}, "required": ["sky"]}
    form = {"type": "json_schema", "json_schema": {"name": "sky", "schema": schema}}
    assert json.loads(text(ask(http, "desk/spark", response_format=form, max_tokens=60)))["sky"] in {"grey", "blue"}


def test_tokens_are_counted_as_it_counts(http, there):
    body = {"model": "desk/spark", "content": "Rain, and what it does to a city."}
    counted = http.post("/tokenize", json=body)
    assert counted.status_code == 200, counted.text
    assert counted.json()["tokens"] == there.http.post("/tokenize", json=body).json()["tokens"]


def test_too_long_a_prompt_is_told_with_both_counts(http, there):
    body = {"model": "desk/spark", "messages": [{"role": "user", "content": "rain " * 3000}]}
    answer = http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["prompt_tokens"] > CONTEXT
    assert error["context_tokens"] == CONTEXT


def test_a_wrong_key_is_told(http, there):
    row = http.put("/tessera/v1/upstreams/desk/key", json={"key": "sk-wrong"}).json()
    # Its list of models is open to everybody; a request is not.
    assert row["state"] in {"ok", "refused"}
    body = {"model": "desk/spark", "messages": [{"role": "user", "content": PROMPT}]}
    answer = http.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_refuses_key")


def endless(http):
    body = {"model": "desk/spark", "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    return http.stream("POST", "/v1/chat/completions", json={**body, "max_tokens": 900, "ignore_eos": True})


def test_a_client_that_leaves_stops_it(http, there):
    with endless(http) as answer:
        assert next(answer.iter_raw())
        wait_for(there.working, 20, "its work")
    wait_for(lambda: not there.working(), 5, "the end of its work")


def test_killed_in_the_middle_of_an_answer(http, there):
    with endless(http) as answer:
        seen = []
        for line in answer.iter_lines():
            seen.append(line)
            if len(seen) == 1:
                there.process.kill()
    error = json.loads(next(x for x in seen if '"error"' in x)[6:])["error"]
    assert error["code"] == "upstream_broke_off"
    there.process.wait()
    body = {"model": "desk/spark", "messages": [{"role": "user", "content": PROMPT}]}
    again = http.post("/v1/chat/completions", json=body)
    assert (again.status_code, again.json()["error"]["code"]) == (502, "upstream_unreachable")


def test_as_an_added_engine_it_says_what_it_says_straight(tmp_path, there):
    straight = ask(there.http, "spark")
    add = [sys.executable, "-m", "app", "engine", "add", "build", PROGRAM]
    env = {**os.environ, "TESSERA_HOME": str(tmp_path)}
    print(subprocess.run(add, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout)
    running = RunningServer(tmp_path)
    head = {"authorization": f"Bearer {running.token}"}
    try:
        with httpx2.Client(base_url=running.url, headers=head, timeout=90) as client:
            client.put("/tessera/v1/models/spark/engine", json={"engine": "build"}).raise_for_status()
            here = ask(client, "spark")
            assert text(here) == text(straight)
            assert here.json()["usage"]["prompt_tokens"] == straight.json()["usage"]["prompt_tokens"]
            (loaded,) = [m for m in client.get("/tessera/v1/loaded").json()["models"] if m["id"] == "spark"]
            assert loaded["backend"] == "llama-server"
            (held,) = client.get("/tessera/v1/ledger").json()["reservations"]
            assert held["measured"]["rss_bytes"] < 2 * held["predicted_bytes"]
            talk = {"model": "spark", "messages": [{"role": "user", "content": PROMPT}]}
            counted = client.post("/v1/messages/count_tokens", json=talk).json()["input_tokens"]
            assert counted == straight.json()["usage"]["prompt_tokens"]
            os.kill(loaded["pid"], signal.SIGKILL)
            wait_for(lambda: not runs(loaded["pid"]), 20, "its end")
            found = lambda: client.get("/tessera/v1/loaded").json()["models"][0]["state"]
            wait_for(lambda: found() == "failed", 20, "that its end is noticed")
            assert text(ask(client, "spark")) == text(straight), "it was started again"
    finally:
        running.stop()


@pytest.fixture
def rounded_with_adapter(tmp_path):
    """The bundled model rounded to Q3_K, and a low-rank adapter that makes up for a part of that rounding.

    Stored as 32-bit floats: with quantized weights, two builds of llama.cpp differ by 0.04 with or without adapter,
    because they round the inputs of products differently.
    """
    source, file = SourceWeights(SPARK), read_gguf(SPARK)
    changed = [n for n in source.names if quantizable(source, n)]
    types = {t.name: GgmlType.F32 if t.name in changed else t.ggml_type for t in file.tensors}
    model, adapter, parts = tmp_path / "rounded.gguf", tmp_path / "adapter.gguf", {}
    writer = GgufWriter(
        model, copied_metadata(file), [TensorSlot(t.name, t.shape, types[t.name]) for t in file.tensors]
    )
    for tensor in file.tensors:
        if tensor.name not in changed:
            writer.write(tensor.name, [file.tensor_bytes(tensor)])
            continue
        weights = source.rows(tensor.name)
        rounded = dequantize_rows(quantize_rows(weights, "Q3_K"), "Q3_K", weights.shape[1])
        writer.write(tensor.name, [rounded])
        if tensor.name.startswith("blk."):
            parts[tensor.name] = low_rank(weights - rounded, np.eye(weights.shape[1]), 16)
    writer.close()
    write_adapter(adapter, file.architecture, parts, 16)
    return model, adapter


def test_an_adapter_for_a_rounded_file_gives_the_same_numbers_there_and_here(rounded_with_adapter, tmp_path):
    model, adapter = rounded_with_adapter
    prompt = CHAT.format(PROMPT)

    async def ask_here(runner):
        request = GenerationRequest(
            prompt=prompt, sampling=LIKELIEST_TOKEN, max_tokens=24, ignore_eos=True, logprobs=1, lora=lora
        )
        answer = await answered(runner, request)
        return answer.ids, [p.logprob for p in answer.logprobs]

    def ask_there(scale):
        body = {"prompt": prompt, "temperature": 0, "n_predict": 24, "ignore_eos": True, "n_probs": 1}
        body |= {"lora": [{"id": 0, "scale": scale}], "cache_prompt": False}
        rows = there.http.post("/completion", json=body).json()["completion_probabilities"]
        return [row["id"] for row in rows], [row["logprob"] for row in rows]

    results = []
    exact = ["--lora", adapter, "-fa", "off", "-ctk", "f32", "-ctv", "f32", "--no-repack"]
    there = LlamaServer(tmp_path, *exact, model=model)
    try:
        for scale in (1.0, 0.0):
            lora = (("adapter", scale),) if scale else ()
            here = with_runner(model, ask_here, lora=(str(adapter),), **EXACT)
            expected = ask_there(scale)
            assert here[0] == expected[0]
            assert np.allclose(here[1], expected[1], atol=TOLERANCE)
            results.append(expected[1])
    finally:
        there.stop()
    assert not np.allclose(*results, atol=0.1), "the adapter changes what is answered"

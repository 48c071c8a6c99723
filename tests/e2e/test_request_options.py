"""Sampler order, context shift and LoRA adapters over HTTP and in the terminal, with the bundled model."""

import json
import os
import subprocess
import sys

import httpx2
import pytest

from tests.support.models.lora_adapter import write_adapter
from tests.support.repeating import WAYS, answer, chat
from tests.support.servers import ROOT, RunningServer

MODEL = "spark"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("options")
    adapter = write_adapter(folder / "pirate.gguf", 0.3)
    running = RunningServer(folder, "--ctx", "256", "--lora", f"{MODEL}={adapter}")
    yield running
    running.stop()


def ask(server, **options):
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 0,
        "max_tokens": 24, "ignore_eos": True, **options,
    }  # fmt: skip
    return httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def text(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def test_the_order_of_samplers_decides(own_server):
    hot = {"temperature": 5.0, "min_p": 0.9, "seed": 3}
    cut_first = text(ask(own_server, **hot, samplers=["min_p", "temperature"]))
    assert cut_first == text(ask(own_server, **hot, samplers=["penalties", "min_p", "temperature"]))
    assert cut_first != text(ask(own_server, **hot, samplers=["temperature"]))


def test_an_unknown_sampler_is_named(own_server):
    answer = ask(own_server, samplers=["top_z"])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "samplers[0]"


def test_an_adapter_changes_the_answer_and_only_where_it_is_named(own_server):
    plain = text(ask(own_server))
    assert text(ask(own_server, lora=[{"name": "pirate", "scale": 0.0}])) == plain
    assert text(ask(own_server, lora=[{"name": "pirate"}])) != plain
    assert text(ask(own_server)) == plain


def test_an_adapter_that_was_not_loaded_is_refused(own_server):
    answer = ask(own_server, lora=[{"name": "other"}])
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "lora"
    assert "pirate" in error["message"]


def test_a_full_context_that_was_set_ends_the_answer_or_is_shifted(own_server):
    full = ask(own_server, max_tokens=600).json()
    assert full["choices"][0]["finish_reason"] == "length"
    assert 256 - 1 <= full["usage"]["total_tokens"] <= 256
    shifted = ask(own_server, max_tokens=600, context_shift=True).json()
    assert shifted["usage"]["completion_tokens"] == 600


def test_chat_on_the_command_line_takes_an_adapter(own_server):
    def chat(*more):
        command = [sys.executable, "-m", "app", "chat", MODEL, "-p", "Tell me a story.", "-t", "0", "--json"]
        return subprocess.run(
            [*command, "--max-tokens", "12", *more],
            cwd=ROOT,
            env={**os.environ, "TESSERA_HOME": str(own_server.home)},
            capture_output=True,
            text=True,
        )

    plain, other = chat(), chat("--lora", "pirate=1.0")
    assert json.loads(plain.stdout) != json.loads(other.stdout)
    assert json.loads(plain.stdout)["answer"] != json.loads(other.stdout)["answer"]
    assert chat("--lora", "pirate=much").returncode == 2


def test_serve_refuses_an_adapter_that_is_no_file(tmp_path):
    command = [sys.executable, "-m", "app", "serve", "--port", "0", "--lora", f"{MODEL}={tmp_path}/none.gguf"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "TESSERA_HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "none.gguf" in done.stderr


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_same_request_gives_the_same_answer_in_every_protocol(server, way):
    found = set()
    with httpx2.Client(base_url=server.url, timeout=60) as http:
        for i in range(4):
            found.add(answer(http, MODEL, way, "Tell me a story."))
            if i % 2:  # a request with the same prefix
                answer(http, MODEL, chat, "Tell me a story of a horse.")
    assert len(found) == 1

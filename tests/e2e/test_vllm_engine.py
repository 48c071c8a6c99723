"""`vllm:` models: a folder that vLLM serves, started and ended by Tessera, with a fake vLLM program."""

import json
import os
import signal
import stat
import sys
from pathlib import Path

import httpx2
import pytest

from tests.support.late import openai
from tests.support.models.small_folder import first_layers
from tests.support.servers import RunningServer, runs, wait_for

pytestmark = pytest.mark.e2e
FAKE = Path(__file__).resolve().parents[1] / "support/fakes/fake_vllm.py"
GIB = 1 << 30


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "vllm"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def begun(home, program, mode="", **more):
    (home / "models").mkdir(parents=True)
    first_layers(home / "models" / "small", 1)
    told = home / "told.json"
    env = {"TESSERA_VLLM": str(program), "VLLM_FAKE": mode, "VLLM_FAKE_TOLD": str(told), **more}
    server = RunningServer(home, env=env)
    server.told = lambda: json.loads(told.read_text())
    return server


@pytest.fixture(scope="module")
def server(program, tmp_path_factory):
    """A server whose vLLM is long in starting, for the tests after which it still runs."""
    running = begun(tmp_path_factory.mktemp("slow") / "home", program, "slow")
    yield running
    running.stop()


@pytest.fixture
def start(program, tmp_path):
    made = []

    def begin(mode="", **more):
        made.append(begun(tmp_path / "home", program, mode, **more))
        return made[-1]

    yield begin
    for server in made:
        server.stop()


def model_of(server):
    with httpx2.Client(base_url=server.url, timeout=60) as http:
        return next(m["id"] for m in http.get("/v1/models").json()["data"] if m["id"].startswith("vllm:"))


def ask(server, text, **options):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=90) as client:
        body = {"model": model_of(server), "messages": [{"role": "user", "content": text}], **options}
        answer = client.chat.completions.create(**body)
        return list(answer) if options.get("stream") else answer  # read while the client is open


def get(server, path):
    head = {"authorization": f"Bearer {server.token}"}
    return httpx2.get(f"{server.url}/tessera/v1/{path}", headers=head, timeout=60).json()


def reserved(server):
    return get(server, "ledger")["reservations"]


def gone(pids):
    """Return whether the processes have ended; zombies count as ended."""
    return not any(map(runs, pids))


def test_a_folder_is_served_with_its_memory_set_aside_and_ends_with_its_model(server):
    model = model_of(server)
    (listed,) = [m for m in get(server, "models")["models"] if m["id"] == model]
    assert (listed["format"], listed["size_bytes"]) == ("vllm", 0), "the folder's own entry has its bytes"
    weights = sum(f.stat().st_size for f in (server.home / "models" / "small").glob("*.safetensors"))
    answer = ask(server, "hello", seed=7)
    assert answer.choices[0].message.content == "Hello from up there"
    assert answer.usage.completion_tokens == 4
    told = server.told()
    assert told["folder"] == str(server.home / "models" / "small")
    assert told["options"]["--host"] == "127.0.0.1"
    assert "--gpu-memory-utilization" not in told["options"], "there is no GPU of NVIDIA here"
    assert told["environment"]["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert told["environment"]["HF_HUB_OFFLINE"] == "1"

    def held():
        (found,) = [r for r in reserved(server) if r["owner"] == model]
        return found

    assert held()["predicted_bytes"] == weights + GIB + 3_000_000_000
    assert held()["measured"]["rss_bytes"] > 64 << 20, "measured is its server, not the engine that it started"
    (loaded,) = [m for m in get(server, "loaded")["models"] if m["id"] == model]
    assert loaded["backend"] == "vllm"
    with httpx2.Client(headers={"authorization": f"Bearer {server.token}"}, timeout=60) as http:
        http.post(f"{server.url}/tessera/v1/models/{model}/unload").raise_for_status()
    wait_for(lambda: gone(told["pids"]), 60, "the end of vLLM and its engine")
    wait_for(lambda: not reserved(server), 60, "its memory")


def test_its_server_answers_nobody_else(server):
    ask(server, "hello")
    url = f"http://127.0.0.1:{server.told()['options']['--port']}/v1/models"
    assert httpx2.get(url).status_code == 401
    assert server.told()["environment"]["VLLM_API_KEY"] not in server.log


def test_tools_and_streams_come_as_from_any_vllm(server):
    weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    called = ask(server, "weather", tools=[weather])
    assert called.choices[0].finish_reason == "tool_calls"
    assert json.loads(called.choices[0].message.tool_calls[0].function.arguments) == {"city": "Oslo"}
    words = [c.choices[0].delta.content for c in ask(server, "hello", stream=True) if c.choices]
    assert "".join(w for w in words if w) == "Hello from up there"


def test_one_that_does_not_start_says_why_and_holds_nothing(start):
    server = start("dies")
    with pytest.raises(openai.APIStatusError, match="Failed to infer device type"):
        ask(server, "hello")
    wait_for(lambda: gone(server.told()["pids"]), 60, "the end of its engine")
    wait_for(lambda: not reserved(server), 60, "its memory")


def test_a_crash_in_an_answer_is_told_and_the_next_request_starts_it_again(start):
    server = start("crash")
    ask(server, "hello")
    first = server.told()["pids"]
    with pytest.raises(openai.APIError, match="illegal memory access"):
        ask(server, "please crash")
    wait_for(lambda: gone(first), 60, "the end of its engine")
    assert ask(server, "again").choices[0].message.content == "Hello from up there"
    assert server.told()["pids"] != first


def test_it_ends_with_a_server_that_is_killed(start):
    server = start()
    ask(server, "hello")
    pids = server.told()["pids"]
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    wait_for(lambda: gone(pids), 60, "the end of vLLM")


def test_without_the_program_there_is_no_such_model(start):
    server = start(TESSERA_VLLM="/nowhere/vllm")
    ids = [m["id"] for m in httpx2.get(f"{server.url}/v1/models", timeout=60).json()["data"]]
    assert not [i for i in ids if i.startswith("vllm:")]

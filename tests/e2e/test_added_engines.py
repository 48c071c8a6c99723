"""A llama-server that the user added serves a model of the library; a small program plays its role."""

import json
import os
import signal
import stat
import sys
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from tests.support.late import openai
from tests.support.servers import RunningServer, runs, wait_for

pytestmark = pytest.mark.e2e
FAKE = Path(__file__).resolve().parents[1] / "support/fakes/fake_llama_server.py"
MODEL = "spark"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("build") / "llama-server"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def start(program, tmp_path, monkeypatch):
    made = []

    def begin(mode="", *arguments):
        home, told = tmp_path / f"home{len(made)}", tmp_path / f"told{len(made)}.json"
        home.mkdir()
        monkeypatch.setenv("TESSERA_HOME", str(home))
        monkeypatch.setenv("LLAMA_FAKE", mode)
        os.utime(program, (len(made), len(mode)))  # a new time, so that the previous mode's output is not cached
        added = CliRunner().invoke(cli, ["engine", "add", "chip", str(program), *arguments])
        assert added.exit_code == 0, added.output
        made.append(RunningServer(home, env={"LLAMA_FAKE": mode, "LLAMA_FAKE_TOLD": str(told)}))
        made[-1].told = lambda: json.loads(told.read_text())
        head = {"authorization": f"Bearer {made[-1].token}"}
        made[-1].http = httpx2.Client(base_url=f"{made[-1].url}/tessera/v1", headers=head, timeout=60)
        chosen = made[-1].http.put(f"/models/{MODEL}/engine", json={"engine": "chip"})
        assert chosen.json() == {"id": MODEL, "engine": "chip", "unloaded": False, "applies": "at_load"}
        return made[-1]

    yield begin
    for server in made:
        server.http.close()
        server.stop()


def ask(server, text, **options):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=90) as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **options}
        return client.chat.completions.create(**body)


def option(server, name):
    arguments = server.told()["arguments"]
    return arguments[arguments.index(name) + 1]


def test_it_serves_a_model_with_memory_reserved_and_ends_with_it(start):
    server = start("", "--threads", "1")
    answer = ask(server, "hello")
    assert answer.choices[0].message.content == "Hello from up there"
    assert option(server, "--host") == "127.0.0.1"
    assert Path(option(server, "--model")).name.startswith(MODEL)
    assert option(server, "--fit") == "off"
    assert {"--kv-unified", "--jinja"} <= set(server.told()["arguments"])
    assert server.told()["arguments"][:2] == ["--threads", "1"], "the user's own come first, so Tessera's decide"
    key = server.told()["environment"]["LLAMA_API_KEY"]
    assert key not in server.log
    assert httpx2.get(f"http://127.0.0.1:{option(server, '--port')}/v1/models").status_code == 401
    (held,) = [r for r in server.http.get("/ledger").json()["reservations"] if r["owner"] == MODEL]
    assert held["predicted_bytes"] > 16 << 20, "less than the file's weights"
    (loaded,) = [m for m in server.http.get("/loaded").json()["models"] if m["id"] == MODEL]
    assert (loaded["backend"], loaded["n_ctx"]) == ("llama-server", 1024)
    placed = server.http.get(f"/models/{MODEL}/placement").json()["placement"]
    assert "chip, a llama-server that you added, runs it (7777 (abcdef0))" in placed["reasons"]
    counted = httpx2.post(
        f"{server.url}/v1/messages/count_tokens",
        json={"model": MODEL, "messages": [{"role": "user", "content": "five words are counted here"}]},
    )
    assert counted.json() == {"input_tokens": 5}
    pid = server.told()["pid"]
    server.http.post(f"/models/{MODEL}/load", json={"ttl_s": 0.1}).raise_for_status()
    wait_for(lambda: not runs(pid), 60, "its end when it is idle")
    wait_for(lambda: not server.http.get("/ledger").json()["reservations"], 60, "its memory")


def test_what_it_cannot_do_is_refused_with_a_reason(start):
    server = start("old")
    with pytest.raises(openai.BadRequestError, match="a server of kind llama-server takes no regex"):
        ask(server, "hello", extra_body={"guided_regex": "a+"})
    assert not {"--fit", "--kv-unified", "--jinja", "--flash-attn", "--device"} & set(server.told()["arguments"])
    context, parallel = int(option(server, "--ctx-size")), int(option(server, "--parallel"))
    assert context == 1024 * parallel, "without a unified cache each of the parallel requests has its own part"
    refused = server.http.put(f"/models/{MODEL}/engine_args", json={"engine_args": {"threads": 1}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "engine_args")
    unknown = server.http.put(f"/models/{MODEL}/engine", json={"engine": "nowhere"})
    assert (unknown.status_code, "chip" in unknown.json()["error"]["message"]) == (400, True)


def test_a_crash_is_told_and_the_next_request_starts_it_again(start):
    server = start("crash")
    ask(server, "hello")
    first = server.told()["pid"]
    ended = r"chip \(llama-server\) ended with code 7: ggml_chip: error: the chip does not answer"
    with pytest.raises(openai.APIError, match=ended):
        ask(server, "please crash")
    assert ask(server, "again").choices[0].message.content == "Hello from up there"
    assert server.told()["pid"] != first


def test_one_that_does_not_start_says_why_and_the_own_engine_takes_the_model_back(start):
    server = start("dies")
    with pytest.raises(openai.APIStatusError, match="code 1: error: failed to load model, unknown architecture"):
        ask(server, "hello")
    assert server.http.get("/ledger").json()["reservations"] == []
    removed = CliRunner().invoke(cli, ["engine", "remove", "chip"])
    assert f"{MODEL}: Tessera's own engine again" in removed.output
    assert ask(server, "hello").choices[0].message.content
    (loaded,) = [m for m in server.http.get("/loaded").json()["models"] if m["id"] == MODEL]
    assert loaded["backend"] == "cpu"


def test_a_device_that_tessera_does_not_know_is_the_programs_own_affair(start):
    server = start("chip")
    ask(server, "hello")
    assert not {"--device", "--n-gpu-layers"} & set(server.told()["arguments"])
    placed = server.http.get(f"/models/{MODEL}/placement").json()["placement"]
    assert any("CHIP0, which Tessera does not know" in reason for reason in placed["reasons"])
    pid = server.told()["pid"]
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    wait_for(lambda: not runs(pid), 60, "its end with the server")


def test_what_is_no_llama_server_is_not_added(tmp_path, monkeypatch, program):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))

    def add(*arguments):
        found = CliRunner().invoke(cli, ["engine", "add", *arguments])
        assert found.exit_code != 0
        return str(found.exception or "") + found.output

    assert "does not list --model" in add("x", sys.executable)
    assert "No such file" in add("x", "/nowhere/llama-server")
    assert "is not a valid program name" in add("vllm", str(program))
    assert "Tessera sets --host itself" in add("x", str(program), "--host", "0.0.0.0")
    listed = CliRunner().invoke(cli, ["engine", "list", "--json"])
    assert json.loads(listed.output)["programs"] == []


def test_no_route_adds_a_program(server):
    """A key gives access to models, but cannot make the server start a program (SECURITY.md)."""
    routes = httpx2.get(f"{server.url}/openapi.json", timeout=60).json()["paths"]
    about_engines = {path.rpartition("/")[2] for path in routes if "engine" in path}
    assert about_engines == {"engine", "engine_args"}
    chosen = {"engine": str(FAKE)}
    head = {"authorization": f"Bearer {server.token}"}
    with httpx2.Client(base_url=server.url, headers=head, timeout=60) as http:
        refused = http.put(f"/tessera/v1/models/{MODEL}/engine", json=chosen)
    assert refused.status_code == 400

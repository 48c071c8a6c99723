"""A fake FastFlowLM program is detected, started, sent requests, crashed and started again."""

import stat
import sys
from pathlib import Path

import httpx2
import pytest

from engine.placement import fastflowlm as detect
from tests.support.late import openai
from tests.support.servers import RunningServer, runs, wait_for

FAKE = Path(__file__).resolve().parents[1] / "support/fakes/fake_flm.py"


@pytest.fixture
def program(tmp_path, monkeypatch):
    path = tmp_path / "flm"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("TESSERA_FLM", str(path))
    return path


@pytest.fixture
def flm_server(program, tmp_path):
    made = []

    def start(mode=""):
        home = tmp_path / f"home{len(made)}"
        home.mkdir()
        made.append(RunningServer(home, env={"TESSERA_FLM": str(program), "FLM_FAKE": mode}))
        return made[-1]

    yield start
    for server in made:
        server.stop()


def ask(server, text, model="flm:llama3.2:1b", **options):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **options)


def test_detection_says_what_is_there(program):
    report = detect.detect()
    assert report.version == "FLM v0.9.46"
    assert not report.problem
    assert [model.tag for model in report.models] == ["llama3.2:1b", "qwen3.5:2b", "whisper-v3:turbo"]
    llama, _, whisper = report.models
    assert (llama.family, llama.parameters, llama.quantization) == ("llama3", "1B", "Q4_1")
    assert (llama.context, llama.footprint_bytes) == (131072, 1_300_000_000)
    assert not whisper.chats


def test_detection_without_the_program(monkeypatch):
    monkeypatch.setenv("TESSERA_FLM", "/nowhere/flm")
    assert detect.detect().problem.startswith("FastFlowLM is not installed")


def test_an_npu_that_is_not_ready_is_said(program, monkeypatch):
    monkeypatch.setenv("FLM_FAKE", "not-ready")
    problem = detect.detect().problem
    assert "not ready" in problem
    assert "amd_iommu must not be off" in problem
    assert "memlock unlimited" in problem
    assert "kernel" not in problem


@pytest.mark.parametrize(
    "listed",
    [
        None,
        [],
        {"models": 3},
        {"models": [{"name": 5}, {"name": "a" * 200}, {"name": "a\n"}, None, 7, {"name": "b", "installed": False}]},
    ],
)
def test_lists_of_other_shapes_name_nothing(listed):
    assert detect._models(listed) == ()


def test_lists_of_other_versions_are_understood():
    assert [m.tag for m in detect._models(["llama3.2:1b"])] == ["llama3.2:1b"]
    strange = {
        "name": "a",
        "details": [],
        "footprint": "big",
        "size": -1,
        "default_context_length": True,
        "label": 1,
    }
    assert detect._models([strange]) == (detect.FlmModel("a"),)


@pytest.mark.e2e
def test_its_models_are_listed_with_what_they_are_and_their_memory_is_set_aside(flm_server):
    server = flm_server()
    head = {"authorization": f"Bearer {server.token}"}
    listed = httpx2.get(f"{server.url}/tessera/v1/models", headers=head, timeout=60).json()["models"]
    [entry] = [m for m in listed if m["id"] == "flm:qwen3.5:2b"]
    assert (entry["details"]["architecture"], entry["details"]["quantization"]) == ("qwen3.5", "Q4_1")
    assert (entry["details"]["n_params"], entry["details"]["context_train"]) == (2_000_000_000, 32768)
    assert not any(m["id"].startswith("flm:whisper") for m in listed)
    placed = httpx2.get(f"{server.url}/tessera/v1/models/flm:qwen3.5:2b/placement", headers=head, timeout=60).json()
    assert (
        "its list gives 3.0 GiB of memory, which are reserved; it does not give the size of the cache"
        in placed["placement"]["reasons"]
    )
    ask(server, "hello", model="flm:qwen3.5:2b")
    held = httpx2.get(f"{server.url}/tessera/v1/ledger", headers=head, timeout=60).json()["reservations"]
    [mine] = [one for one in held if one["owner"] == "flm:qwen3.5:2b"]
    assert mine["predicted_bytes"] == 3_500_000_000
    assert 0 < mine["measured"]["rss_bytes"] < 3_500_000_000  # of the server that FastFlowLM started


@pytest.mark.e2e
def test_a_model_that_does_not_fit_is_refused_with_the_numbers(flm_server):
    with pytest.raises(openai.APIStatusError, match=r"838\.5 GiB are needed") as refused:
        ask(flm_server("huge"), "hello", model="flm:qwen3.5:2b")
    assert refused.value.body["code"] == "not_enough_memory"


@pytest.mark.e2e
def test_chat_crash_and_restart(flm_server):
    server = flm_server()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        assert "flm:llama3.2:1b" in {m.id for m in client.models.list()}
        answer = ask(server, "hello there")
        assert answer.choices[0].message.content == "NPU says: hello there"
        assert answer.usage.completion_tokens == 4
        first = server.runners("engine.upstreams.guard")[0].pid
        ended = "FastFlowLM ended with code 134 in the middle of the answer: xrt: firmware timed out"
        with pytest.raises(openai.APIError, match=ended):
            ask(server, "please crash now")
        with pytest.raises(openai.APIError, match="FastFlowLM aborted the answer"):
            ask(server, "please hangup now")
        assert ask(server, "again").choices[0].message.content == "NPU says: again"
        wait_for(lambda: len(server.runners("engine.upstreams.guard")) == 1, what="the end of the first")
        (second,) = server.runners("engine.upstreams.guard")
        assert second.pid != first
        flm = [p.pid for p in second.children(recursive=True)]
    server.stop()
    wait_for(lambda: not any(map(runs, flm)), what="the end of flm")


@pytest.mark.e2e
def test_what_it_cannot_do_is_refused(flm_server):
    server = flm_server()
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError, match="kind flm cannot do response_format"):
        ask(server, "hello", response_format=schema)


@pytest.mark.e2e
def test_a_server_that_does_not_come_up(flm_server):
    server = flm_server("dies")
    with pytest.raises(
        openai.APIStatusError, match=r"FastFlowLM ended with code 1: \[ERROR\] No NPU device found.*flm validate"
    ):
        ask(server, "hello")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        spark = client.chat.completions.create(model="spark", messages=[{"role": "user", "content": "hi"}])
    assert spark.choices[0].message.content

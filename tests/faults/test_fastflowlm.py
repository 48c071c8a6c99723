"""FastFlowLM against a stand-in for its program: detected, started, spoken to, crashed, started again."""

import stat
import sys
from pathlib import Path

import openai
import psutil
import pytest
from servers import RunningServer, wait_for

from engine.flm import detect

FAKE = Path(__file__).resolve().parent.parent / "fake_flm.py"


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


def ask(server, text, **options):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        return client.chat.completions.create(
            model="flm:llama3.2:1b", messages=[{"role": "user", "content": text}], **options
        )


def test_detection_says_what_is_there(program):
    report = detect.detect()
    assert report.version == "FLM v0.9.46"
    assert report.ready is True
    assert report.models == ("llama3.2:1b", "qwen3:0.6b")


def test_detection_without_the_program(monkeypatch):
    monkeypatch.setenv("TESSERA_FLM", "/nowhere/flm")
    assert detect.detect().problem.startswith("FastFlowLM is not installed")


def test_an_npu_that_is_not_ready_is_said(program, monkeypatch):
    monkeypatch.setenv("FLM_FAKE", "not-ready")
    assert "not ready" in detect.detect().problem


@pytest.mark.e2e
def test_chat_crash_and_restart(flm_server):
    server = flm_server()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        assert "flm:llama3.2:1b" in {m.id for m in client.models.list()}
        answer = ask(server, "hello there")
        assert answer.choices[0].message.content == "NPU says: hello there"
        assert answer.usage.completion_tokens == 4
        first = server.runners()[0].pid
        with pytest.raises(openai.APIError, match="flm ended with code 134: xrt: firmware timed out"):
            ask(server, "please crash now")
        with pytest.raises(openai.APIError, match="it hung up in the middle"):
            ask(server, "please hangup now")
        assert ask(server, "again").choices[0].message.content == "NPU says: again"
        second = server.runners()[0]
        assert second.pid != first
        flm = [p.pid for p in second.children(recursive=True)]
    server.stop()
    wait_for(lambda: not any(map(psutil.pid_exists, flm)), what="the end of flm")


@pytest.mark.e2e
def test_what_it_cannot_do_is_refused(flm_server):
    server = flm_server()
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError, match="FastFlowLM does not do response_format"):
        ask(server, "hello", response_format=schema)


@pytest.mark.e2e
def test_a_server_that_does_not_come_up(flm_server):
    server = flm_server("dies")
    with pytest.raises(openai.APIStatusError, match=r"flm ended with code 1: \[ERROR\] No NPU device found"):
        ask(server, "hello")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        spark = client.chat.completions.create(model="spark", messages=[{"role": "user", "content": "hi"}])
    assert spark.choices[0].message.content

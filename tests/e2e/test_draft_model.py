"""A draft model chosen by the user: refused if unsuitable, counted in memory, reported, stored."""

import json
import os
import subprocess
import sys

import httpx2
import pytest

from tests.support.models.mtp_model import write_mtp_model
from tests.support.models.shapes import shallow, write_shape
from tests.support.models.variants import write_weaker
from tests.support.servers import ROOT, RunningServer

pytestmark = pytest.mark.e2e
BODY = {"model": "spark", "messages": [{"role": "user", "content": "What is a token?"}], "max_tokens": 40}


@pytest.fixture(scope="module")
def running(tmp_path_factory, bundled_model):
    home = tmp_path_factory.mktemp("drafting")
    (home / "models").mkdir()
    write_weaker(bundled_model, home / "models" / "weaker.gguf", 0.3)
    write_shape(home / "models" / "stranger.gguf", shallow("llama"))
    write_mtp_model(home / "models" / "headed.gguf", "right")
    server = RunningServer(home)
    yield server
    server.stop()


def manage(server, method, path, body=None):
    headers = {"authorization": f"Bearer {server.token}"}
    return httpx2.request(method, f"{server.url}/tessera/v1/{path}", json=body, headers=headers, timeout=60)


def chat(server, **options):
    answer = httpx2.post(
        f"{server.url}/v1/chat/completions", json={**BODY, "temperature": 0, **options}, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def parts(server):
    told = manage(server, "GET", "models/spark/placement").json()
    found: dict[str, int] = {}
    for part in told["placement"]["need"]["parts"]:
        found[part["name"]] = found.get(part["name"], 0) + part["num_bytes"]
    return found


def test_it_is_loaded_counted_and_used(running):
    plain = chat(running, speculate=False)
    assert "draft" not in parts(running)
    loaded = manage(running, "POST", "models/spark/load", {"draft": "weaker.gguf"})
    assert loaded.status_code == 200, loaded.text
    assert loaded.json()["draft"] == "weaker.gguf"
    assert parts(running)["draft"] > (running.home / "models" / "weaker.gguf").stat().st_size * 0.9
    guessed = chat(running, speculate=True)
    assert [c["message"]["content"] for c in guessed["choices"]] == [
        c["message"]["content"] for c in plain["choices"]
    ]
    assert guessed["timings"]["draft_n"] > 5
    assert json.loads((running.home / "config" / "model_settings.json").read_text())
    manage(running, "POST", "models/spark/unload")
    chat(running)  # the choice is stored
    assert manage(running, "GET", "loaded").json()["models"][0]["draft"] == "weaker.gguf"
    without = manage(running, "POST", "models/spark/load", {"draft": ""})
    assert without.json()["draft"] is None


def test_a_models_own_head_is_used_without_being_asked_for(running):
    def ask(**options):
        body = {"model": "headed", "prompt": [(37 * i * i + 11 * i) % 500 for i in range(40)], "max_tokens": 60}
        body |= {"temperature": 0, "ignore_eos": True, **options}
        answer = httpx2.post(f"{running.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    guessed, plain = ask(speculate=True), ask(speculate=False)
    assert guessed["choices"][0]["text"] == plain["choices"][0]["text"]
    assert guessed["timings"]["draft_n_accepted"] == guessed["timings"]["draft_n"] > 20
    models = manage(running, "GET", "loaded").json()["models"]
    headed = next(m for m in models if m["id"].startswith("headed"))
    assert headed["mtp"] is True
    manage(running, "POST", f"models/{headed['id']}/unload")
    reasons = manage(running, "GET", "models/headed/placement").json()["placement"]["reasons"]
    assert any("MTP head" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [("stranger.gguf", 400, "tokenizer"), ("spark", 400, "itself"), ("nothing", 404, "nothing")],
)
def test_what_cannot_draft_is_refused_and_changes_nothing(running, name, status, words):
    answer = manage(running, "POST", "models/spark/load", {"draft": name})
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    assert chat(running)["choices"]


def test_the_terminal_chooses_one(running):
    command = [
        sys.executable,
        "-m",
        "app",
        "chat",
        "spark",
        "--draft",
        "weaker.gguf",
        "-p",
        "Hi",
        "--max-tokens",
        "4",
    ]
    env = {**os.environ, "TESSERA_HOME": str(running.home)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert manage(running, "GET", "loaded").json()["models"][0]["draft"] == "weaker.gguf"


def test_a_servers_draft_serves_every_model_of_its_vocabulary(tmp_path, bundled_model):
    (tmp_path / "models").mkdir()
    write_weaker(bundled_model, tmp_path / "models" / "weaker.gguf", 0.3)
    write_shape(tmp_path / "models" / "stranger.gguf", shallow("llama"))
    server = RunningServer(tmp_path, "--draft", "weaker.gguf")
    try:
        assert manage(server, "POST", "models/spark/load").json()["draft"] == "weaker.gguf"
        assert manage(server, "POST", "models/stranger.gguf/load").json()["draft"] is None
        assert manage(server, "POST", "models/weaker.gguf/load").json()["draft"] is None
    finally:
        server.stop()

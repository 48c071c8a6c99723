"""Placement queries change nothing, and a requested context is available or refused."""

import asyncio
import json
import os

import httpx2
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from devices.recording import RecordedHost
from engine.core.errors import NotEnoughMemory
from engine.library.catalogue import Catalogue
from engine.placement.memory_admission import MemoryAdmission
from engine.placement.placer import Placer
from engine.placement.resources import MachineState, open_resources
from engine.server.models import ServedModels
from tests.support.fakes.free_pool import FreePool
from tests.support.fakes.scripted import TOKEN, ScriptedServer, home_paths
from tests.support.machines.machines import machines
from tests.support.models.shapes import scaled, write_shape

MANAGE = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def home(tmp_path):
    """A models folder with a model that was trained for a long context."""
    models = home_paths(tmp_path).models
    models.mkdir(parents=True)
    write_shape(models / "long.gguf", scaled("llama", vocab=2000, layers=2, kv_heads=2, context=131072))
    return tmp_path


@pytest.fixture
def server(home):
    running = ScriptedServer(home, dispatched=True)
    (running.folder / "n_ctx_train").write_text("131072")
    yield running
    running.stop()


def placement(server, query=""):
    answer = httpx2.get(f"{server.url}/tessera/v1/models/long/placement{query}", headers=MANAGE, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_cold_model_is_loaded_with_the_context_that_is_asked_for(server):
    body = {"model": "long", "prompt": "", "options": {"num_ctx": 32768}}
    assert httpx2.post(f"{server.url}/api/generate", json=body, timeout=60).status_code == 200
    [running] = httpx2.get(f"{server.url}/api/ps").json()["models"]
    held = httpx2.get(f"{server.url}/tessera/v1/ledger", headers=MANAGE, timeout=60).json()["reservations"]
    memory = next(r for r in held if r["owner"] == running["name"].removesuffix(":latest"))
    assert running["size"] == memory["predicted_bytes"] - memory["parts"].get("prefixes", 0)
    assert running["context_length"] == 32768
    first = server.state.pool.get("long").runner.pid
    longer = {**body, "options": {"num_ctx": 65536}}
    assert httpx2.post(f"{server.url}/api/generate", json=longer, timeout=60).status_code == 200
    grown = server.state.pool.get("long")
    assert (grown.facts.n_ctx, grown.placement.settings.n_ctx) == (65536, 65536)
    assert grown.runner.pid != first


def test_a_context_that_does_not_fit_is_refused_before_anything_is_loaded(home):
    recording = machines()["vm-firecracker"]
    meminfo = f"MemTotal: {8 << 20} kB\nMemAvailable: {(2048 + 150) * 1024} kB\n"
    small = RecordedHost({**recording, "files": {**recording["files"], "/proc/meminfo": meminfo}})
    paths = home_paths(home)

    async def never(engine, path):
        pytest.fail("a runner was started")

    async def ask():
        placer = Placer(open_resources(paths, MachineState(small)))
        models = ServedModels(lambda: Catalogue(paths), choose=placer.choose)
        pool = FreePool(models, never, MemoryAdmission(placer))
        try:
            await pool.acquire("long", min_ctx=131072)
        finally:
            await pool.close()

    with pytest.raises(NotEnoughMemory) as refused:
        asyncio.run(ask())
    assert refused.value.needed_bytes > refused.value.available_bytes > 0


def test_what_is_shown_as_loaded_is_what_was_loaded(server):
    assert placement(server)["loaded"] is None
    load = httpx2.post(f"{server.url}/tessera/v1/models/long/load", json={}, headers=MANAGE, timeout=60)
    assert load.json()["state"] == "loaded"
    before = placement(server)["loaded"]
    assert before["settings"]["n_ctx"] == 65536
    assert any(reason.startswith("64k of context") for reason in before["reasons"])
    server.state.placer.pin("long", "cpu/cpu")
    asked = placement(server, "?ctx=512&parallel=1")
    assert "you pinned cpu/cpu" in asked["placement"]["reasons"]
    assert asked["placement"]["n_ctx"] == 512
    assert asked["loaded"] == placement(server)["loaded"] == before


def test_an_agent_is_started_with_the_context_it_needs(server, tessera_home, tmp_path, monkeypatch):
    """A context smaller than agents need is replaced before the agent starts; a user's choice stays."""
    (tessera_home / "state").mkdir()
    note = {"url": server.url, "token": TOKEN, "pid": os.getpid()}
    (tessera_home / "state" / "server.json").write_text(json.dumps(note))
    tool = tmp_path / "bin" / "claude"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 7\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")

    def launch():
        done = CliRunner().invoke(cli, ["launch", "claude", "--model", "long"], catch_exceptions=False)
        assert done.exit_code == 7, done.output
        return server.state.pool.get("long").settings.n_ctx, done.output

    body = {"model": "long", "prompt": "", "options": {"num_ctx": 16384}}
    assert httpx2.post(f"{server.url}/api/generate", json=body, timeout=60).status_code == 200
    assert server.state.pool.get("long").settings.n_ctx == 16384
    n_ctx, said = launch()
    assert n_ctx == 65536
    assert "context 65536 tokens" in said
    assert "Warning" not in said
    chosen = httpx2.put(
        f"{server.url}/tessera/v1/models/long/load-settings", json={"n_ctx": 8192}, headers=MANAGE, timeout=60
    )
    assert chosen.status_code == 200
    refused = CliRunner().invoke(cli, ["launch", "claude", "--model", "long"], catch_exceptions=False)
    assert refused.exit_code == 3
    assert "you set it to 8,192" in refused.output


def test_a_question_names_settings_that_a_load_would_get(server):
    """A placement query must choose settings only once, like a load."""
    asked = placement(server)["placement"]
    httpx2.post(f"{server.url}/tessera/v1/models/long/load", json={}, headers=MANAGE, timeout=60)
    loaded = server.state.pool.get("long").settings
    assert {name: asked["settings"][name] for name in ("n_threads", "kv_cells", "n_parallel", "flash_attn")} == {
        "n_threads": loaded.n_threads,
        "kv_cells": loaded.kv_cells,
        "n_parallel": loaded.n_parallel,
        "flash_attn": loaded.flash_attn,
    }

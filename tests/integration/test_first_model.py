"""`tessera serve --model` loads the model without a request, and reports the startup times."""

import os
import subprocess

import pytest

from app.client import Client
from devices.child_command import own_command
from engine.core.startup_timing import StartupTimer, process_age_s
from tests.support.servers import RunningServer, wait_for


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    server = RunningServer(tmp_path_factory.mktemp("home"), "--ctx", "512", "--model", "default")
    with Client(server.url, server.token) as made:
        yield made
    server.stop()


def test_the_model_is_loaded_without_a_request(client):
    wait_for(lambda: any(m.state == "loaded" for m in client.loaded()), 120, "a loaded model")
    (model,) = client.loaded()
    assert model.active == 0


def test_stats_tell_where_the_time_of_a_start_went(client):
    wait_for(lambda: any(m.state == "loaded" for m in client.loaded()), 120, "a loaded model")
    found = client.stats()
    assert [p.name for p in found.start][:3] == ["program", "models", "routes"]
    (model,) = found.models
    assert [p.name for p in model.load] == ["place", "memory", "runner", "load"]
    names = [p.name for p in model.runner]
    assert names[0] == "program"
    assert names[-1] == "ready"
    assert {"weights", "context", "check"} <= set(names)
    assert all(p.seconds >= 0 and p.cpu_s >= 0 for p in (*found.start, *model.load, *model.runner))
    assert next(p for p in model.runner if p.name == "program").cpu_s > 0


def test_a_model_that_is_not_there_ends_the_start(tmp_path):
    done = subprocess.run(
        own_command("serve", "--port", "0", "--model", "nowhere"),
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "TESSERA_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 3
    assert "There is no model named 'nowhere' here." in done.stderr
    assert not (tmp_path / "state" / "server.json").exists()


def test_phases_add_up():
    begun = process_age_s()
    phases = StartupTimer(from_start=True)
    for name in ("one", "two", "two", "three"):
        phases.done(name)
    assert [p.name for p in phases.all()] == ["one", "two", "three"]
    assert begun - 0.1 <= sum(p.seconds for p in phases.all()) <= process_age_s() + 0.1

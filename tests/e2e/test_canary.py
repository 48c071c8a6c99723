"""A device that becomes wrong while it serves: found in its answers, reported, and not used again.

The fault is put into the logits of a real runner, which a real server starts.
"""

import json

import httpx2
import pytest

from tests.support.servers import RunningServer, wait_for

# Python imports it at the start of every process; only runners change. From the 20th decode on, each row of logits
# belongs to other tokens, as on a device that mixes up columns, or is not a number.
SITE = """
import importlib.util, sys

class Faulty:
    def find_spec(self, name, path, target=None):
        if name != "engine.runner.llama.batch.scheduler":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            import numpy
            class WrongLater(module.Logits):
                decodes = 0
                def rows(self, count):
                    found = super().rows(count)
                    WrongLater.decodes += 1
                    if WrongLater.decodes > 20:
                        found[:] = WRONG
                    return found
            module.Logits = WrongLater
        spec.loader.exec_module = exec_module
        return spec

if "engine.runner.main" in sys.orig_argv:
    sys.meta_path.insert(0, Faulty())
"""
QUESTION = {
    "model": "spark",
    "messages": [{"role": "user", "content": "Tell me a story about a lighthouse."}],
    "temperature": 0,
    "max_tokens": 260,
    "ignore_eos": True,
}


@pytest.fixture
def server_with(tmp_path):
    """Starts a server whose runners compute this instead of the logits, after some seconds of earlier computing."""
    running = []

    def start(wrong, computing_s):
        site, state = tmp_path / "site", tmp_path / "state"
        site.mkdir()
        state.mkdir()
        (site / "sitecustomize.py").write_text(SITE.replace("WRONG", wrong))
        data = {"computing_s": computing_s}
        (state / "canary.json").write_text(json.dumps({"version": 1, "data": data}))
        running.append(RunningServer(tmp_path, env={"PYTHONPATH": str(site)}))
        return running[0]

    yield start
    for server in running:
        server.stop()


def test_a_device_whose_results_are_not_numbers_is_not_used_again(server_with):
    """A request that fails is all that the user sees of it, so its comparison waits for no earned time."""
    server = server_with("numpy.nan", 0.0)
    headers = {"Authorization": f"Bearer {server.token}"}

    def asked():
        return httpx2.post(f"{server.url}/v1/chat/completions", json={**QUESTION, "max_tokens": 40}, timeout=120)

    def canary():
        return httpx2.get(f"{server.url}/tessera/v1/canary", headers=headers).json()

    assert "not a number" in asked().text
    wait_for(lambda: canary()["found"], what="a fault that is found")
    (found,) = canary()["found"]
    assert "are not numbers; llama.cpp's are" in found["reason"]
    assert found["tokens"] < 70
    url = f"{server.url}/tessera/v1/models/spark/placement"
    assert httpx2.get(url, headers=headers).json()["placement"]["settings"]["tiles"] == []


def test_a_device_that_becomes_wrong_is_found_in_its_answers(server_with):
    server = server_with("numpy.roll(found, 7, axis=1)", 1e5)  # enough computing to pay for the comparison
    headers = {"Authorization": f"Bearer {server.token}"}

    def asked(**changes):
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json={**QUESTION, **changes}, timeout=120)
        return answer.json()["tessera"].get("notes", [])

    def canary():
        return httpx2.get(f"{server.url}/tessera/v1/canary", headers=headers).json()

    assert asked() == []
    wait_for(lambda: canary()["found"], what="a fault that is found")
    state = canary()
    (found,) = state["found"]
    assert found["model"] == "spark"
    assert found["nats"] > 0.5 > found["noise_nats"]
    assert found["tokens"] <= 300  # 22 of the prompt, and one of 256 rows
    assert found["since"] < found["found_at"]
    assert state["spent_s"] < 0.005 * state["computing_s"]
    assert "lighthouse" not in (server.home / "state" / "canary.json").read_text()

    def settings():
        url = f"{server.url}/tessera/v1/models/spark/placement"
        return httpx2.get(url, headers=headers).json()["placement"]["settings"]

    assert settings()["tiles"] == []
    (note,) = asked(max_tokens=4)
    assert "may be wrong" in note
    assert asked(max_tokens=4) == []  # only the next answer carries it

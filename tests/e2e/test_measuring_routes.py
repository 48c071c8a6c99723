"""Measuring, utilization and request timing over HTTP, with a real server and the bundled model."""

import time

import httpx2
import pytest

from devices.host_real import RealHost
from devices.power import meters
from tests.support.servers import RunningServer, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
PARTS = ("queue_s", "load_s", "prefill_s", "decode_s", "network_s", "other_s")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = RunningServer(tmp_path_factory.mktemp("measuring"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(server):
    with httpx2.Client(
        base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=120
    ) as made:
        yield made


def get(client, path, status=200):
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def ended(client, job):
    wait_for(lambda: get(client, f"/tessera/v1/jobs/{job}")["state"] in {"done", "failed", "cancelled"}, 240)
    return get(client, f"/tessera/v1/jobs/{job}")


def test_where_the_time_of_a_request_went(client):
    body = {"model": "spark", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 24}
    for _ in range(2):
        assert client.post("/v1/chat/completions", json=body).status_code == 200
    newest, first = get(client, "/tessera/v1/stats/requests")["requests"][:2]
    assert newest["model"] == "spark"
    assert newest["route"] == "/v1/chat/completions"
    assert newest["id"].startswith("req_")
    for spent in (newest, first):
        assert sum(spent[part] for part in PARTS) == pytest.approx(spent["total_s"], abs=0.01)
        assert all(spent[part] >= 0 for part in PARTS)
        assert spent["decode_s"] > 0
    assert first["load_s"] > newest["load_s"]


def test_tools_are_timed_between_two_requests(client):
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Nothing."},
    ]
    body = {"model": "spark", "messages": messages, "max_tokens": 4}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    assert get(client, "/tessera/v1/stats/requests?limit=1")["requests"][0]["tools_s"] == 0.0


def test_utilization_in_a_ring_in_stats_and_in_prometheus(client):
    wait_for(lambda: len(get(client, "/tessera/v1/stats/utilization")["samples"]) >= 2, 60)
    samples = get(client, "/tessera/v1/stats/utilization?seconds=60")["samples"]
    assert samples[0]["at"] < samples[-1]["at"] <= time.time() + 1
    assert all(0 <= s["cpu_frac"] <= 1 for s in samples)
    assert 0 < samples[-1]["memory_used_bytes"] < samples[-1]["memory_total_bytes"]
    told = client.get("/metrics").text
    assert "tessera_cpu_busy_ratio" in told
    assert "tessera_memory_used_bytes" in told
    once = client.get("/tessera/v1/stats?once=true").text
    assert '"utilization":{"at"' in once.replace(" ", "")


def test_the_history_counts_what_a_request_read_and_wrote(client):
    def newest():
        return get(client, "/tessera/v1/stats/history?seconds=60")["samples"][-1]

    wait_for(lambda: get(client, "/tessera/v1/stats/history")["samples"], 60)
    body = {"model": "spark", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7, "ignore_eos": True}
    usage = client.post("/v1/chat/completions", json=body).json()["usage"]

    def counted():
        """A sample after the end of the answer; one during it may already contain all its tokens."""
        told = newest()
        return told["generated_tokens"] >= usage["completion_tokens"] and told["active"] == 0

    wait_for(counted, 60)
    assert newest()["prompt_tokens"] >= usage["prompt_tokens"]
    assert newest()["rss_bytes"] > 10 << 20


def test_a_measurement_is_a_job_and_dispatch_knows_it(client):
    body = {"model": "spark", "lengths": [16], "parallel": [1, 2], "repeats": 1, "tokens": 4}
    answer = client.post("/tessera/v1/bench", json=body)
    assert answer.status_code == 202, answer.text
    job = ended(client, answer.json()["id"])
    assert job["state"] == "done", job["error"]
    (kept,) = get(client, "/tessera/v1/bench?model=spark")["results"]
    assert kept["points"][0]["length"] == 16
    assert kept["concurrency"][0]["parallel"] == 2
    assert kept["shape_key"]
    placed = get(client, "/tessera/v1/models/spark/placement")["placement"]
    assert placed["measured_on"] == "model"
    assert placed["decode_tok_s"] == pytest.approx(kept["points"][0]["decode_tok_s"]["median"], abs=0.1)


def test_a_tuning_job_can_be_cancelled(client):
    job = client.post("/tessera/v1/autotune", json={"model": "spark", "lengths": [32]}).json()
    wait_for(lambda: get(client, f"/tessera/v1/jobs/{job['id']}")["progress"]["done"] >= 1, 120)
    client.post(f"/tessera/v1/jobs/{job['id']}/cancel")
    assert ended(client, job["id"])["state"] == "cancelled"


@pytest.mark.skipif(any(m.readable for m in meters(RealHost(), ())), reason="this computer has a power meter")
def test_tuning_for_energy_without_a_meter_is_refused_with_what_was_looked_for(client):
    job = client.post("/tessera/v1/autotune", json={"model": "spark", "lengths": [32], "goal": "energy"}).json()
    assert "for energy" in job["title"]
    told = ended(client, job["id"])
    assert told["state"] == "failed"
    assert told["error"]["code"] == "no_power_meter"
    assert "Searched" in told["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("bench", {}),
        ("bench", {"model": "spark", "shape": "qwen3-8b"}),
        ("bench", {"shape": "gpt-9"}),
        ("bench", {"model": "spark", "lengths": []}),
        ("bench", {"model": "spark", "lengths": [0]}),
        ("bench", {"model": "spark", "parallel": [1000]}),
        ("autotune", {"model": "spark", "limit_s": 0}),
        ("autotune", {"model": "spark", "lengths": ["x"]}),
        ("autotune", {"model": "spark", "goal": "beauty"}),
    ],
    ids=str,
)
def test_nonsense_is_refused(client, path, body):
    assert client.post(f"/tessera/v1/{path}", json=body).status_code == 400


def test_a_model_that_is_not_there(client):
    job = client.post("/tessera/v1/bench", json={"model": "nobody"}).json()
    told = ended(client, job["id"])
    assert told["state"] == "failed"
    assert told["error"]["code"] == "model_not_found"

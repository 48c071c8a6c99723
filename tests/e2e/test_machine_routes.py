"""The machine over HTTP, with a real server and the bundled model."""

import httpx2
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from tests.servers import RunningServer, wait_for

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = RunningServer(tmp_path_factory.mktemp("machine"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(server):
    with httpx2.Client(
        base_url=server.url, headers={"authorization": f"Bearer {server.token}"}, timeout=60
    ) as made:
        yield made


def get(client, path, status=200):
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_devices(client):
    machine = get(client, "/tessera/v1/devices")
    assert machine["devices"][0]["kind"] == "cpu"
    assert machine["devices"][0]["state"] == "usable"
    assert any(b["backend"] == "cpu" and b["state"] == "usable" for b in machine["backends"])
    assert machine["build"].startswith("Kernels:")


def test_placement_says_where_why_and_how_much(client):
    answer = get(client, "/tessera/v1/models/spark-f16/placement?ctx=512&kv=q8_0&parallel=2")
    placement, fit = answer["placement"], answer["fit"]
    assert (placement["device"], placement["n_ctx"], placement["type_k"]) == ("cpu", 512, "q8_0")
    assert placement["reasons"]
    assert fit["fits"] is True
    assert fit["largest_context"] >= 512
    assert {p["name"] for p in fit["need"]["parts"]} >= {"weights", "kv", "compute", "overhead"}


@pytest.mark.parametrize(
    ("query", "status"), [("kv=q9_9", 400), ("ctx=-1", 400), ("ctx=x", 400), ("parallel=9999", 400)]
)
def test_bad_wishes_are_refused(client, query, status):
    answer = client.get(f"/tessera/v1/models/spark-f16/placement?{query}")
    assert answer.status_code in {status, 422}
    assert "error" in answer.json()


def test_an_unknown_model_is_not_found(client):
    assert "error" in get(client, "/tessera/v1/models/none-such/placement", 404)


def test_the_routes_need_the_token(server):
    for path in ("devices", "ledger", "models/spark-f16/placement"):
        assert httpx2.get(f"{server.url}/tessera/v1/{path}").status_code == 401


def test_a_load_is_reserved_measured_and_audited(client):
    assert get(client, "/tessera/v1/ledger")["reservations"] == []
    body = {"model": "spark-f16", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert client.post("/v1/chat/completions", json=body).status_code == 200

    def audited():
        return get(client, "/tessera/v1/ledger")["audits"]

    wait_for(audited, 30, "the audit")
    ledger = get(client, "/tessera/v1/ledger")
    (held,) = ledger["reservations"]
    assert held["owner"].startswith("spark")
    assert held["measured"]["pss_bytes"] > 30 << 20
    assert held["parts"]["weights"] > 1 << 20
    audit = ledger["audits"][-1]
    assert abs(audit["error_frac"]) < 0.3  # scratch memory not yet touched counts as predicted only
    pools = {p["id"]: p for p in ledger["pools"]}
    assert sum(p["capacity_bytes"] for p in ledger["pools"]) <= pools["ram"]["capacity_bytes"]
    assert ledger["available_bytes"]["cpu"] < pools["ram"]["free_bytes"]


def test_unloading_from_the_terminal_audits_once_more(client, server, monkeypatch):
    body = {"model": "spark-f16", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    monkeypatch.setenv("TESSERA_HOME", str(server.home))
    run = CliRunner().invoke
    assert "spark" in run(cli, ["models", "loaded"]).output
    assert "is unloaded" in run(cli, ["models", "unload", "spark"]).output
    assert "was not loaded" in run(cli, ["models", "unload", "spark"]).output
    ledger = get(client, "/tessera/v1/ledger")
    assert ledger["reservations"] == []
    audit = ledger["audits"][-1]
    assert audit["moment"] == "unload"
    assert abs(audit["error_frac"]) < 0.3  # two tokens touch little of what a full context does

"""The machine routes over HTTP, with a real server and the bundled model."""

import httpx2
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from devices.detect import inventory
from devices.host_real import RealHost
from tests.support.servers import RunningServer, wait_for

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
    assert answer.status_code == status
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

    wait_for(audited, 60, "the audit")
    ledger = get(client, "/tessera/v1/ledger")
    (held,) = ledger["reservations"]
    assert held["owner"].startswith("spark")
    assert held["measured"]["pss_bytes"] > 30 << 20
    assert held["parts"]["weights"] > 1 << 20
    audit = ledger["audits"][-1]
    assert abs(audit["error_frac"]) < 0.3  # untouched scratch memory is only in the prediction
    assert audit["buffers"]["CPU"] > 1 << 20
    assert sum(audit["buffers"].values()) < audit["predicted_bytes"]
    pools = {p["id"]: p for p in ledger["pools"]}
    assert sum(p["capacity_bytes"] for p in ledger["pools"]) <= pools["ram"]["capacity_bytes"]
    assert ledger["available_bytes"]["cpu"] < pools["ram"]["free_bytes"]


def test_unloading_from_the_terminal_audits_once_more(client, server, monkeypatch):
    body = {"model": "spark-f16", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    monkeypatch.setenv("TESSERA_HOME", str(server.home))
    run = CliRunner().invoke
    for _ in range(4):
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        assert "spark" in run(cli, ["models", "loaded"]).output
        assert "is unloaded" in run(cli, ["models", "unload", "spark"]).output
        assert "was not loaded" in run(cli, ["models", "unload", "spark"]).output
        ledger = get(client, "/tessera/v1/ledger")
        assert ledger["reservations"] == []
        audit = ledger["audits"][-1]
        if audit["moment"] == "unload":  # a runner gets at most 1 s for its last figures
            break
    assert audit["moment"] == "unload"
    assert abs(audit["error_frac"]) < 0.3  # two tokens touch little of a full context's memory


def test_live_readings_name_every_device(client):
    known = {d["id"] for d in get(client, "/tessera/v1/devices")["devices"]}
    get(client, "/tessera/v1/devices/live")
    readings = get(client, "/tessera/v1/devices/live")["devices"]
    assert {reading["device"] for reading in readings} == known
    cpu = next(reading for reading in readings if reading["device"] == "cpu")
    assert cpu["busy_frac"] is None or 0 <= cpu["busy_frac"] <= 1


def test_a_pin_is_kept_shown_and_taken_back(client):
    path = "/tessera/v1/models/spark-f16"
    refused = client.post(f"{path}/pin", json={"device": "warp-core"})
    assert refused.status_code == 400
    assert "cpu" in refused.json()["error"]["message"]
    pinned = client.post(f"{path}/pin", json={"device": "cpu/cpu"})
    assert pinned.json()["device"] == "cpu/cpu"
    told = get(client, f"{path}/placement")
    assert told["pinned"] == "cpu/cpu"
    assert "you pinned cpu/cpu" in told["placement"]["reasons"]
    assert client.post(f"{path}/pin", json={"device": None}).json()["device"] is None
    assert get(client, f"{path}/placement")["pinned"] is None


def test_every_tensor_of_a_file_is_told(client):
    tensors = get(client, "/tessera/v1/models/spark/tensors")["tensors"]
    by_name = {tensor["name"]: tensor for tensor in tensors}
    assert len(by_name) == len(tensors)
    embedding = by_name["token_embd.weight"]
    assert embedding["qtype"] == "F16"
    assert embedding["num_bytes"] == 2 * embedding["shape"][0] * embedding["shape"][1]
    assert "error" in get(client, "/tessera/v1/models/none-such/tensors", 404)


def test_recent_requests_name_program_model_and_numbers_but_nothing_said(client):
    question = {"role": "user", "content": "What is quantization?"}
    body = {"model": "spark", "messages": [question], "max_tokens": 8, "temperature": 0}
    headers = {"user-agent": "My-Editor/1.2 (secret words)"}
    assert client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
    refused = client.post("/v1/chat/completions", json={**body, "model": "gone"}, headers=headers)
    assert refused.status_code == 404
    told = get(client, "/tessera/v1/requests")
    failed, done = told["requests"][:2]
    assert (failed["status"], failed["model"], failed["running"]) == (404, None, False)
    assert (done["program"], done["route"], done["status"]) == ("My-Editor/1.2", "/v1/chat/completions", 200)
    assert done["completion_tokens"] == 8
    assert done["prompt_tokens"] > 0
    assert done["tok_s"] > 0
    assert done["ttft_s"] > 0
    editor = next(program for program in told["programs"] if program["name"] == "My-Editor/1.2")
    assert (editor["connected"], editor["active"], editor["num_requests"]) == (True, 0, 2)
    assert "quantization" not in str(told)
    assert "secret" not in str(told)
    assert not any(
        program["name"].startswith("python-httpx2") and program["active"] for program in told["programs"]
    )


def test_a_plan_tells_the_context_that_fits_beside_it_and_takes_a_cache_type(client):
    path = "/tessera/v1/quantize/plan"
    plan = client.post(path, json={"model": "spark", "tier": "instant", "budget_bytes": 6_000_000}).json()
    trained = 1024
    assert plan["forecast"]["largest_context"] == trained
    overrides = {"model": "spark", "tier": "instant", "fit": True, "n_ctx": 1024, "memory_bytes": 1 << 30}
    for cache in ("q8_0", "q4_0"):
        fitted = client.post(path, json={**overrides, "kv_type": cache}).json()
        assert fitted["plan"]["kv"]["type_k"] == cache
    assert client.post(path, json={**overrides, "kv_type": "q9"}).status_code == 400


def engine_args(client, status=200, **args):
    answer = client.put("/tessera/v1/models/spark/engine_args", json={"engine_args": args})
    assert answer.status_code == status, answer.text
    return answer.json()


def greedy(client):
    body = {"model": "spark", "prompt": "Once upon a time there was " * 20, "max_tokens": 24, "temperature": 0}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def test_raw_engine_arguments_reach_llama_cpp_and_the_ledger(client):
    usual = greedy(client)
    told = engine_args(client, rope_freq_base=100.0, ctx_size=2048, override_tensor=["ffn_down=CPU"])
    assert told["unloaded"]
    assert told["needed_bytes"] > 0
    assert greedy(client) != usual  # also: prefixes with other RoPE frequencies are not reused
    loaded = next(m for m in get(client, "/tessera/v1/loaded")["models"] if m["id"] == "spark")
    assert (loaded["n_ctx"], loaded["engine_args"]["rope_freq_base"]) == (2048, 100.0)
    assert "rope_freq_base 100.0" in get(client, "/tessera/v1/models/spark/placement")["placement"]["reasons"][-1]
    kept = get(client, "/tessera/v1/models/spark/engine_args")["engine_args"]
    assert kept == {"rope_freq_base": 100.0, "ctx_size": 2048, "override_tensor": ["ffn_down=CPU"]}
    engine_args(client)
    assert greedy(client) == usual
    again = client.post("/tessera/v1/models/spark/load", json={"engine_args": {"ctx_size": 512}}).json()
    assert again["n_ctx"] == 512
    for state in ("loaded", "cold"):  # what a client names neither reloads the model nor changes its size
        named = {"model": "spark", "prompt": "Hi", "stream": False, "options": {"num_ctx": 1024, "num_predict": 2}}
        assert client.post("/api/generate", json=named).status_code == 200
        now = client.post("/tessera/v1/models/spark/load", json={"n_ctx": 1024}).json()
        assert (now["n_ctx"], now["pid"] == again["pid"]) == (512, state == "loaded")
        client.post("/tessera/v1/models/spark/unload")
    assert client.post("/tessera/v1/models/spark/load", json={"engine_args": {}}).json()["n_ctx"] == 1024


@pytest.mark.parametrize(
    ("args", "param"),
    [
        ({"nonsense": 1}, "engine_args"),
        ({"rope_scaling": "banana"}, "engine_args.rope_scaling"),
        ({"override_tensor": ["ffn=Vulkan77"]}, "engine_args"),
        ({"override_tensor": ["(a+)+=CPU"]}, "engine_args.override_tensor"),
        ({"override_kv": ["general.architecture=str:banana"]}, "engine_args"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "engine_args"),
        ({"devices": ["CUDA77"]}, "engine_args.devices"),
    ],
)
def test_engine_arguments_that_llama_cpp_refuses_are_not_kept(client, args, param):
    assert engine_args(client, 400, **args)["error"]["param"] == param
    assert get(client, "/tessera/v1/models/spark/engine_args") == {"id": "spark"}


@pytest.mark.skipif("avx2" not in inventory(RealHost()).isa, reason="plain attention pays with AVX2")
def test_a_model_that_is_asked_long_chats_is_loaded_for_them_next_time(tmp_path):
    def reasons(running):
        headers = {"authorization": f"Bearer {running.token}"}
        route = f"{running.url}/tessera/v1/models/spark/placement"
        return " ".join(httpx2.get(route, headers=headers, timeout=60).json()["placement"]["reasons"])

    first = RunningServer(tmp_path)
    try:
        without = {"engine_args": {"tiles": False}}  # with Tessera's own attention there is no choice
        headers = {"authorization": f"Bearer {first.token}"}
        route = f"{first.url}/tessera/v1/models/spark/engine_args"
        assert httpx2.put(route, json=without, headers=headers, timeout=60).status_code == 200
        assert "one long text at a time" not in reasons(first)
        for _ in range(4):
            body = {"model": "spark", "prompt": "word " * 600, "max_tokens": 300, "ignore_eos": True}
            answer = httpx2.post(f"{first.url}/v1/completions", json=body, timeout=120)
            assert answer.json()["usage"]["completion_tokens"] == 300
    finally:
        first.stop()
    second = RunningServer(tmp_path)
    try:
        assert "one long text at a time" in reasons(second)
        body = {"model": "spark", "prompt": "Hello", "max_tokens": 4}
        assert httpx2.post(f"{second.url}/v1/completions", json=body, timeout=120).status_code == 200
    finally:
        second.stop()


def test_load_settings_are_kept_obeyed_and_bounded(client, server):
    path = "/tessera/v1/models/spark-f16/load-settings"
    assert get(client, path)["user"] == {}
    overrides = {"n_ctx": 768, "kv_type": "q8_0", "n_threads": 1, "keep_loaded": True}
    assert client.put(path, json=overrides).json()["user"] == overrides
    placed = get(client, "/tessera/v1/models/spark-f16/placement")["placement"]
    assert (placed["n_ctx"], placed["type_k"], placed["n_threads"]) == (768, "q8_0", 1)
    without = get(client, "/tessera/v1/models/spark-f16/placement?saved=false&gpu_layers=0&threads=2")["placement"]
    assert (without["n_ctx"], without["n_threads"]) == (1024, 2)
    loaded = client.post("/tessera/v1/models/spark-f16/load", json={}).json()
    assert (loaded["n_ctx"], loaded["pinned"]) == (768, True)
    for wrong in ({"n_ctx": 4096}, {"kv_type": "q9_9"}, {"n_ctx": 1}, {"n_threads": 0}):
        refused = client.put(path, json=wrong)
        assert refused.status_code in {400, 422}, wrong
        assert refused.json()["error"]["message"]
    assert get(client, path)["user"] == overrides
    gone = client.put(path, json={}).json()
    assert (gone["user"], gone["unloaded"]) == ({}, True)
    assert get(client, "/tessera/v1/models/spark-f16/placement")["placement"]["n_ctx"] == 1024


def test_a_model_has_the_name_its_owner_gave_it_until_that_is_taken_back(client):
    path = "/tessera/v1/models/spark-f16"
    own = get(client, path)["name"]
    assert client.put(f"{path}/name", json={"name": "  My   Spark "}).json()["name"] == "My Spark"
    assert get(client, "/tessera/v1/models/My%20Spark")["id"] == get(client, path)["id"]
    assert "My Spark" in {row.get("name") for row in get(client, "/v1/models")["data"]}
    job = client.post(f"{path}/verify").json()["id"]  # storing other data changes neither name
    wait_for(lambda: get(client, f"/tessera/v1/jobs/{job}")["state"] == "done", 60)
    assert get(client, path)["name"] == "My Spark"
    assert client.put(f"{path}/name", json={"name": ""}).json()["name"] == own
    assert client.put(f"{path}/name", json={"name": "x" * 201}).status_code in {400, 422}
    assert client.put("/tessera/v1/models/nobody/name", json={"name": "x"}).status_code == 404

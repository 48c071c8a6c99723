"""The library and its jobs over HTTP: a real server on loopback with the fake hub."""

import json
import struct
import threading
import time
from pathlib import Path

import httpx2
import pytest
import uvicorn

from devices.memory_ledger import DeviceBytes
from devices.probes import ram
from engine.core.paths import user_paths
from engine.jobs.jobs import JobRegistry
from engine.library import recommended_models, work
from engine.library.catalogue import Catalogue
from engine.placement.placer import Placer
from engine.placement.resources import open_resources
from engine.server.auth import Access
from engine.server.build_server import create_app
from engine.server.models import ServedModels
from engine.server.state import ServerState
from tests.support.fakes.fake_hub import FakeFile, FakeHub
from tests.support.fakes.free_pool import FreePool
from tests.support.models.onnx_models import requantize

SPARK = Path("assets/models/spark-f16.gguf")
FOLDER = Path("tests/data/spark-hf")
MB = 1024 * 1024


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    with FakeHub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        running.add("org/Spark-GGUF", {"spark-Q4_K_M.gguf": SPARK.read_bytes()})
        yield running


@pytest.fixture
def placer(hub):
    return Placer(open_resources(user_paths()))


@pytest.fixture
def server(hub, placer):
    paths = user_paths()
    jobs = JobRegistry(paths.state / "jobs.json")
    work.register(jobs, lambda: Catalogue(paths, scan=False))
    models = ServedModels(lambda: Catalogue(paths))
    app = create_app(
        ServerState(models=models, pool=FreePool(models), access=Access("secret"), placer=placer, jobs=jobs)
    )
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    headers = {"authorization": "Bearer secret"}
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False, timeout=60) as client:
        yield client
    running.should_exit = True
    thread.join()


def follow(client, job):
    """All job states in its event stream."""
    with client.stream("GET", f"/tessera/v1/jobs/{job['id']}/events", timeout=100) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        data = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    return [json.loads(item) for item in data]


def test_the_token_is_needed(server):
    for path in ("models", "jobs", "jobs/events", "hub/search", "trash"):
        assert httpx2.get(f"{server.base_url}/tessera/v1/{path}", trust_env=False).status_code == 401


def test_verdicts_count_what_loaded_models_hold(server, placer, monkeypatch):
    usual, memory = ram.text, f"MemTotal: {8 << 20} kB\nMemAvailable: {6 << 20} kB\n"  # that of others changes
    monkeypatch.setattr(ram, "text", lambda host, path: memory if path == "/proc/meminfo" else usual(host, path))

    def available():
        [option] = server.get("/tessera/v1/hub/plan", params={"repo": "org/Spark-GGUF"}).json()["options"]
        return option["verdict"]["available_bytes"], option["verdict"]["fits"]

    free, fits = available()
    assert fits
    placer.ledger.reserve("a model that is loading", {"cpu": DeviceBytes(free // 2)})
    assert available()[0] < 0.6 * free
    placer.ledger.reserve("a model that is loading", {"cpu": DeviceBytes(int(free * 0.99))})
    left, fits = available()
    assert left < 0.1 * free


def test_pull_with_progress_then_show_verify_remove_restore(server, hub):
    hub.faults.bytes_per_s = 6 * MB  # a few seconds, so that progress is visible
    answer = server.post("/tessera/v1/models/pull", json={"model": "org/Spark-GGUF"})
    assert answer.status_code == 202
    seen = follow(server, answer.json())
    assert seen[-1]["state"] == "done"
    assert seen[-1]["result"]["model"] == "spark-q4_k_m"
    assert {"downloading"} <= {job["progress"]["phase"] for job in seen}
    listed = server.get("/tessera/v1/models").json()["models"]
    assert [m["id"] for m in listed] == ["spark", "spark-q4_k_m"]
    shown = server.get("/tessera/v1/models/spark-q4_k_m").json()
    assert shown["origin"]["repo"] == "org/Spark-GGUF"
    assert "im_start" in shown["details"]["chat_template"]
    job = server.post("/tessera/v1/models/spark-q4_k_m/verify").json()
    assert follow(server, job)[-1]["result"]["basis"] == "hub"
    ticket = server.delete("/tessera/v1/models/spark-q4_k_m").json()["ticket"]
    assert server.get("/tessera/v1/models/spark-q4_k_m").status_code == 404
    assert [t["ticket"] for t in server.get("/tessera/v1/trash").json()["trash"]] == [ticket]
    assert server.post(f"/tessera/v1/trash/{ticket}/restore").json()["id"] == "spark-q4_k_m"
    server.delete("/tessera/v1/models/spark-q4_k_m")
    assert server.delete("/tessera/v1/trash").json()["freed_bytes"] == SPARK.stat().st_size


def wait_for(client, job, state):
    while (found := client.get(f"/tessera/v1/jobs/{job['id']}").json())["state"] != state:
        assert found["state"] in {"queued", "running", "paused"}
        time.sleep(0.02)
    return found


def test_pause_resume_and_cancel(server, hub):
    hub.faults.bytes_per_s = MB
    job = server.post("/tessera/v1/models/pull", json={"model": "org/Spark-GGUF"}).json()
    while not server.get(f"/tessera/v1/jobs/{job['id']}").json()["progress"]["done"]:
        time.sleep(0.02)
    server.post(f"/tessera/v1/jobs/{job['id']}/pause")
    kept = wait_for(server, job, "paused")
    assert 0 < kept["progress"]["done"] < SPARK.stat().st_size
    assert server.post(f"/tessera/v1/jobs/{job['id']}/pause").status_code == 400
    hub.faults.bytes_per_s = 0
    server.post(f"/tessera/v1/jobs/{job['id']}/resume")
    assert wait_for(server, job, "done")["result"]["model"] == "spark-q4_k_m"
    assert server.post(f"/tessera/v1/jobs/{job['id']}/resume").status_code == 400
    hub.add("org/Other-GGUF", {"other-Q4_K_M.gguf": SPARK.read_bytes()})
    hub.faults.bytes_per_s = MB
    job = server.post("/tessera/v1/models/pull", json={"model": "org/Other-GGUF"}).json()
    while not server.get(f"/tessera/v1/jobs/{job['id']}").json()["progress"]["done"]:
        time.sleep(0.02)
    server.post(f"/tessera/v1/jobs/{job['id']}/cancel")
    while server.get(f"/tessera/v1/jobs/{job['id']}").json()["state"] != "cancelled":
        time.sleep(0.02)
    assert [m["id"] for m in server.get("/tessera/v1/models").json()["models"]] == ["spark", "spark-q4_k_m"]
    assert [j["state"] for j in server.get("/tessera/v1/jobs").json()["jobs"]] == ["cancelled", "done"]


def test_cancelling_a_paused_download_drops_its_bytes_without_asking_the_hub(server, hub, tmp_path):
    hub.faults.bytes_per_s = MB
    job = server.post("/tessera/v1/models/pull", json={"model": "org/Spark-GGUF"}).json()
    while not server.get(f"/tessera/v1/jobs/{job['id']}").json()["progress"]["done"]:
        time.sleep(0.02)
    server.post(f"/tessera/v1/jobs/{job['id']}/pause")
    wait_for(server, job, "paused")
    hub.settle()
    assert list((tmp_path / "home/models/.partial").rglob("*.part"))
    server.post(f"/tessera/v1/jobs/{job['id']}/cancel")
    while server.get(f"/tessera/v1/jobs/{job['id']}").json()["state"] != "cancelled":
        time.sleep(0.02)
    assert not list((tmp_path / "home/models/.partial").rglob("*.part"))
    assert hub.requests == []


def test_hub_routes(server, hub):
    found = server.get("/tessera/v1/hub/search", params={"text": "spark"}).json()["repositories"]
    assert [hit["repo"] for hit in found] == ["org/Spark-GGUF"]
    plan = server.get("/tessera/v1/hub/plan", params={"repo": "org/Spark-GGUF"}).json()
    assert plan["options"][0]["choice"]["label"] == "Q4_K_M"
    assert plan["options"][0]["size_bytes"] == SPARK.stat().st_size
    proposals = server.get("/tessera/v1/hub/starters").json()["proposals"]
    assert [bool(proposal["recommended"]) for proposal in proposals] == [True, False, False]
    assert server.get("/tessera/v1/hub/folders").json() == {"folders": []}


def test_recommended_models_are_checked_with_the_hub_if_asked_and_listed_if_it_does_not_answer(server, hub):
    def proposed(**query):
        found = server.get("/tessera/v1/hub/starters", params=query).json()
        ids = {proposal["starter"]["id"] for proposal in found["proposals"]}
        return ids, found["checked"], {proposal["download_bytes"] for proposal in found["proposals"]}

    listed, checked, sizes = proposed()
    assert (len(listed), checked, sizes) == (3, False, {0})
    assert server.get("/tessera/v1/hub/starters").json()["listed_on"] == recommended_models.listed_on()
    assert hub.requests == []
    hub.faults.server_error = 1
    assert proposed(check=True) == (listed, False, {0})
    gone = min(listed)
    for starter in recommended_models.starters():
        if starter.id != gone:
            hub.add(starter.repo, {"some-Q4_K_M.gguf": SPARK.read_bytes(), "some-F16.gguf": b"larger"})
    found, checked, sizes = proposed(check=True)
    assert (len(found), checked, sizes) == (3, True, {SPARK.stat().st_size})
    assert gone not in found
    asked = len(hub.requests)
    assert proposed(check=True)[0] == found
    assert len(hub.requests) - asked <= 1, "the answers are remembered, except that there is no such repository"


def test_link_and_import(server, tmp_path):
    (tmp_path / "drive").mkdir()
    (tmp_path / "drive/mine.gguf").write_bytes(SPARK.read_bytes())
    assert server.post("/tessera/v1/models/link", json={"where": str(tmp_path / "drive")}).json()["added"] == [
        "mine"
    ]
    job = server.post("/tessera/v1/models/import", json={"path": str(tmp_path / "drive/mine.gguf")}).json()
    assert follow(server, job)[-1]["result"]["model"] in {"mine", "spark"}, "the same content is not copied again"
    (tmp_path / "drive/mine.gguf").rename(tmp_path / "moved.gguf")
    located = server.post("/tessera/v1/models/mine/locate", json={"path": str(tmp_path / "moved.gguf")}).json()
    assert (located["id"], located["path"]) == ("mine", str(tmp_path / "moved.gguf"))
    (tmp_path / "moved.gguf").rename(tmp_path / "drive/mine.gguf")  # found in the folder again, under its id
    (tmp_path / "drive/new.gguf").write_bytes(SPARK.read_bytes())
    ids = [m["id"] for m in server.get("/tessera/v1/models", params={"refresh": True}).json()["models"]]
    assert ids == ["mine", "new", "spark"]
    linked = {"path": str(tmp_path / "drive"), "app": "", "models": 2, "is_here": True}
    assert server.get("/tessera/v1/linked-folders").json() == {"folders": [linked]}
    (tmp_path / "drive").rename(tmp_path / "away")  # a drive that is gone can be unlinked
    unlinked = server.delete("/tessera/v1/linked-folders", params={"where": linked["path"]}).json()
    assert unlinked == {"folders": [linked["path"]], "removed": ["mine", "new"]}
    (tmp_path / "away").rename(tmp_path / "drive")
    ids = [m["id"] for m in server.get("/tessera/v1/models", params={"refresh": True}).json()["models"]]
    assert ids == ["spark"]
    assert (tmp_path / "drive/mine.gguf").exists()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "models/pull", {}, 400, "model"),
        ("POST", "models/pull", {"model": 7}, 400, "model"),
        ("POST", "models/link", {"where": "/nowhere"}, 400, "path"),
        ("DELETE", "linked-folders?where=/nowhere", None, 400, "where"),
        ("DELETE", "linked-folders", None, 400, "where"),
        ("POST", "models/nope/locate", {"path": "/nowhere"}, 404, "model"),
        ("GET", "models/nope", None, 404, "model"),
        ("POST", "models/nope/verify", None, 404, "model"),
        ("DELETE", "models/nope", None, 404, "model"),
        ("GET", "jobs/nope", None, 400, "id"),
        ("GET", "jobs/nope/events", None, 400, "id"),
        ("POST", "jobs/nope/cancel", None, 400, "id"),
        ("POST", "trash/..%2f../restore", None, 400, "ticket"),
        ("GET", "hub/plan?repo=org/absent", None, 404, "repo"),
        ("GET", "hub/plan?repo=../x", None, 400, "repo"),
    ],
)
def test_bad_requests_name_the_field(method, path, body, status, param, server):
    answer = server.request(method, f"/tessera/v1/{path}", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param


def test_a_download_that_fails_says_why_in_its_job(server, hub):
    job = server.post("/tessera/v1/models/pull", json={"model": "org/Spark-GGUF", "quant": "Q9"}).json()
    last = follow(server, job)[-1]
    assert last["state"] == "failed"
    assert last["error"]["code"] == "nothing_to_download"
    assert last["error"]["facts"]["choices"] == ["Q4_K_M"]
    assert "It offers: Q4_K_M" in last["error"]["message"]


@pytest.fixture(scope="module")
def uploads(tmp_path_factory):
    """The bundled model in two types, and once with weights that are not finite."""
    folder = tmp_path_factory.mktemp("uploads")
    files = {t: requantize(SPARK, folder / f"{t}.gguf", t).read_bytes() for t in ("Q8_0", "Q4_0")}
    broken = bytearray(files["Q8_0"])
    broken[-200_000:] = b"\x00\x7e" * 100_000  # scales of NaN in the last tensor
    return {**files, "broken": bytes(broken)}


def compared(server, **request):
    answer = server.post("/tessera/v1/hub/compare", json=request)
    assert answer.status_code == 202, answer.text
    return follow(server, answer.json())[-1]


def test_uploads_are_compared_by_a_sample_of_their_rows(server, hub, uploads):
    hub.add("org/Spark", {"spark-F16.gguf": SPARK.read_bytes()})
    base = {"license": "mit", "base_model": "org/Spark"}
    files = {f"spark-{t}.gguf": uploads[t] for t in ("Q8_0", "Q4_0")}
    hub.add("one/Spark-GGUF", files, card=base)
    hub.add(
        "two/Spark-GGUF",
        {"spark-Q4_0.gguf": uploads["broken"]},
        card=base,
        tags=("gguf", "base_model:quantized:org/Spark"),
    )
    job = compared(server, uploads=["one/Spark-GGUF"], more=1)
    result = job["result"]
    assert result["original"] == "org/Spark:F16"
    assert [(u["repo"], u["label"]) for u in result["uploads"]] == [
        ("one/Spark-GGUF", "Q4_0"),
        ("one/Spark-GGUF", "Q8_0"),
        ("two/Spark-GGUF", "Q4_0"),
    ]
    small, large, broken = result["uploads"]
    assert small["kld"] > 50 * large["kld"] > 0
    assert small["low"] < small["kld"] < small["high"]
    assert "damaged" in broken["problem"]
    assert broken["kld"] is None
    assert result["common_factor"] > 1
    assert hub.sent_bytes < 0.03 * result["total_bytes"]
    assert all("Range" in headers for _, path, headers in hub.requests if path.endswith(".gguf"))
    hub.settle()
    again = compared(server, uploads=["one/Spark-GGUF:Q4_0"])["result"]
    assert again["uploads"] == [small]
    assert hub.sent_bytes == 0


def test_a_folder_of_safetensors_is_an_original(server, hub, uploads):
    folder = {
        path.name: FakeFile(path.read_bytes(), lfs=path.suffix == ".safetensors") for path in FOLDER.iterdir()
    }
    hub.add("org/Spark", folder)
    hub.add("org/Half", {"spark-F16.gguf": SPARK.read_bytes()})
    card = {"license": "mit", "base_model": "org/Spark"}
    hub.add("one/Spark-GGUF", {"spark-Q4_0.gguf": uploads["Q4_0"]}, card=card)
    hub.settle()
    found = compared(server, uploads=["one/Spark-GGUF"])["result"]
    assert found["original"] == "org/Spark:safetensors"
    assert hub.sent_bytes < 0.05 * found["total_bytes"]  # two small files: the vocabulary alone is 1 %
    same = compared(server, uploads=["one/Spark-GGUF"], original="org/Half")["result"]
    assert found["uploads"] == same["uploads"]


def test_what_cannot_be_compared_says_why(server, hub, uploads):
    hub.add("one/Alone", {"spark-Q4_0.gguf": uploads["Q4_0"]})
    hub.add("one/Spark", {"spark-Q4_0.gguf": uploads["Q4_0"]})
    hub.add("org/Spark", {"spark-F16.gguf": SPARK.read_bytes()})
    assert server.post("/tessera/v1/hub/compare", json={"uploads": ["nothing"]}).status_code == 400
    no_original = compared(server, uploads=["one/Alone"])
    assert "no original of one/Alone" in no_original["error"]["message"]
    no_such = compared(server, uploads=["one/Spark:Q2_K"])
    assert "'Q2_K'; it offers: Q4_0" in no_such["error"]["message"]
    hub.faults.ignore_ranges = True
    hub.settle()
    no_ranges = compared(server, uploads=["one/Spark"], original="org/Spark")
    assert "range requests" in no_ranges["error"]["message"]
    assert hub.sent_bytes < SPARK.stat().st_size / 2  # until the connection was closed


def test_hostile_uploads_are_refused_one_by_one(server, hub, uploads):
    raw = SPARK.read_bytes()
    name = b"blk.0.attn_q.weight"
    at = raw.index(name) + len(name)
    assert struct.unpack_from("<IQQI", raw, at) == (2, 256, 256, 1)
    one_row = raw[:at] + struct.pack("<IQQI", 2, 256 * 256, 1, 1) + raw[at + 24 :]
    no_weights = raw[:at] + struct.pack("<IQQI", 2, 512, 256, 24) + raw[at + 24 :]  # I8, which ggml cannot expand
    files = {"a-Q4_0.gguf": uploads["Q4_0"], "b-Q5_0.gguf": one_row, "c-Q5_1.gguf": b"GGUF" + b"\xff" * 999}
    hub.add("one/Spark", {**files, "d-F16.gguf": raw})
    hub.add("two/Spark", {"d-F16.gguf": no_weights, "e-Q4_1.gguf": no_weights})
    job = compared(server, uploads=["one/Spark"])
    problems = {u["label"]: u["problem"] for u in job["result"]["uploads"]}
    assert job["result"]["common_factor"] > 1  # of the one that was compared, not of the last one
    assert problems["Q4_0"] == ""
    assert "not the same model" in problems["Q5_0"]
    assert "version" in problems["Q5_1"]
    [refused] = compared(server, uploads=["two/Spark:Q4_1"])["result"]["uploads"]
    assert "cannot be decoded" in refused["problem"]


def test_a_comparison_can_be_cancelled(server, hub, uploads):
    hub.add("one/Spark", {"spark-Q4_0.gguf": uploads["Q4_0"], "spark-F16.gguf": SPARK.read_bytes()})
    server.get("/tessera/v1/hub/plan", params={"repo": "one/Spark"})  # the headers are stored
    hub.faults.bytes_per_s = 20_000
    job = server.post("/tessera/v1/hub/compare", json={"uploads": ["one/Spark"]}).json()
    while not server.get(f"/tessera/v1/jobs/{job['id']}").json()["progress"]["done"]:
        time.sleep(0.02)
    server.post(f"/tessera/v1/jobs/{job['id']}/cancel")
    assert wait_for(server, job, "cancelled")["result"] is None
    hub.faults.bytes_per_s = 0
    hub.faults.too_many = 3  # a busy hub is waited for
    assert compared(server, uploads=["one/Spark"])["state"] == "done"
    assert hub.faults.too_many == 0

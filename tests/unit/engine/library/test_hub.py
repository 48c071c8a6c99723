"""The hub client, planning and downloading, driven over real sockets against the fake hub."""

import hashlib
import logging
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.errors import Cancelled, InputFault
from engine.jobs import Control, Paused
from engine.library import errors
from engine.library.catalogue import Catalogue
from engine.library.hub.client import HubClient
from engine.library.hub.download import Download, Request
from engine.library.hub.plan import Verdict, plan_repository
from engine.library.hub.repository import is_safe_name
from engine.library.hub.transfer import Patience
from quantize.ggml_types import GgmlType
from tests.fake_hub import FakeFile, FakeHub
from tests.fake_models import Zeros, remote_gguf, repository_of_twenty

SPARK = Path("assets/models/spark-f16.gguf")
QUICK = Patience(streams=3, segment_bytes=2 * 1024 * 1024, give_up_s=5.0, first_backoff_s=0.05)
MB = 1024 * 1024


@pytest.fixture
def hub(monkeypatch):
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FakeHub() as running:
        yield running


@pytest.fixture
def client(hub):
    return HubClient(hub.endpoint)


@pytest.fixture
def spark(hub):
    return hub.add(
        "org/Spark-GGUF", {"spark-F16.gguf": SPARK.read_bytes(), "README.md": FakeFile(b"hi", lfs=False)}
    )


def download(client, catalogue, repo="org/Spark-GGUF", label=None, patience=QUICK):
    repository = client.repository(repo)
    choices = repository.choices()
    choice = next(c for c in choices if label in {None, c.label})
    return Download(client, catalogue, Request(repository, choice.files), patience)


def leftovers(catalogue):
    models = catalogue.paths.models
    return sorted(str(p.relative_to(models)) for p in models.rglob("*") if p.is_file())


# Search and listing


def test_search_finds_and_follows_pages(hub, client):
    for index in range(7):
        hub.add(f"org/Model-{index}-GGUF", {}, gguf={"total": 8_000_000_000, "architecture": "qwen3"})
    hub.add("org/Model-safetensors", {}, tags=("transformers",))
    hub.page = 3
    found = client.search("model", limit=6)
    assert [hit.repo for hit in found] == [f"org/Model-{i}-GGUF" for i in range(6)]
    assert (found[0].n_params, found[0].architecture) == (8_000_000_000, "qwen3")
    assert len(client.search("", gguf_only=False, limit=50)) == 8
    assert client.search("nothing like it") == ()


def test_a_listing_has_sizes_hashes_and_choices(hub, client, spark):
    spark.files["split-Q4_K_M-00001-of-00002.gguf"] = FakeFile(b"a")
    spark.files["split-Q4_K_M-00002-of-00002.gguf"] = FakeFile(b"bb")
    spark.files["half-Q8_0-00001-of-00002.gguf"] = FakeFile(b"a")
    spark.files["mmproj-F16.gguf"] = FakeFile(b"a")
    found = client.repository("org/Spark-GGUF")
    assert found.revision == "c" * 40
    assert found.license == "apache-2.0"
    assert [(c.label, len(c.files), c.size_bytes) for c in found.choices()] == [
        ("Q4_K_M", 2, 3),
        ("F16", 1, SPARK.stat().st_size),
    ]
    assert found.choices()[1].files[0].sha256 == hashlib.sha256(SPARK.read_bytes()).hexdigest()
    assert [f.name for f in found.projectors()] == ["mmproj-F16.gguf"]


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../b", "/etc/passwd", "C:\\x", "C:x", "a\\b", "a\0b", "a\nb", "", "a//b", ".", "..", "...", "con",
     "aux.gguf",
     "x.", " x", "x ", "a/" * 9 + "b", "y" * 201, "~/x", "a/~root/x", "\udcff", 'a"b', "a|b", "a*", "NUL.txt"],
)  # fmt: skip
def test_names_that_could_lead_elsewhere(name):
    assert not is_safe_name(name)


@pytest.mark.parametrize(
    "name", ["a", "model-00001-of-00002.gguf", "Q4_K_M/m.gguf", "ünï/模型 (1).gguf", ".gitattributes"]
)
def test_names_that_are_fine(name):
    assert is_safe_name(name)


def test_a_repository_that_names_files_elsewhere_gets_none_of_them(hub, client, catalogue, spark):
    spark.files["../../escape-Q4_0.gguf"] = FakeFile(SPARK.read_bytes())
    spark.files["/abs-Q5_0.gguf"] = FakeFile(SPARK.read_bytes())
    assert [c.label for c in client.repository("org/Spark-GGUF").choices()] == ["F16"]
    for repo in ("../x", "a/b/c", "a/..", "x\0y", "", "org/con"):
        with pytest.raises(InputFault):
            client.repository(repo)


def test_not_found_and_gated(hub, client, caplog, monkeypatch):
    with pytest.raises(errors.RepositoryNotFound):
        client.repository("org/absent")
    hub.add("org/gated", {"m-Q8_0.gguf": SPARK.read_bytes()}, gated=True)
    with pytest.raises(errors.RepositoryNotFound, match="revision"):
        client.repository("org/gated", "nope")
    caplog.set_level(logging.DEBUG)
    with pytest.raises(errors.GatedRepository) as caught:
        client.repository("org/gated")
    assert not caught.value.has_token
    with pytest.raises(errors.GatedRepository) as caught:
        HubClient(hub.endpoint, token="hf_secret_canary").repository("org/gated")
    assert caught.value.has_token
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert HubClient(hub.endpoint).repository("org/gated").gated
    shown = caplog.text + str(caught.value) + repr(caught.value.facts()) + repr(HubClient(hub.endpoint))
    assert "canary" not in shown
    assert hub.token not in shown


def test_offline_mode_sends_nothing(hub, client, spark, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(errors.Offline):
        client.repository("org/Spark-GGUF")
    assert hub.requests == []


def test_a_hub_that_does_not_answer(client, hub):
    with pytest.raises(errors.HubUnreachable):
        HubClient("http://127.0.0.1:9").repository("org/x")
    with pytest.raises(errors.HubUnreachable):
        HubClient("http://127.0.0.1:9").search("x")
    hub.faults.server_error = 1
    with pytest.raises(errors.HubUnreachable) as caught:
        client.repository("org/x")
    assert caught.value.status == 503
    hub.faults.too_many, hub.faults.retry_after = 1, "17"
    with pytest.raises(errors.RateLimited) as limited:
        client.repository("org/x")
    assert limited.value.retry_after_s == 17


def test_no_telemetry_and_no_request_beyond_the_asked_one(hub, client, spark):
    client.repository("org/Spark-GGUF")
    assert [(method, path.partition("?")[0]) for method, path, _ in hub.requests] == [
        ("GET", "/api/models/org/Spark-GGUF")
    ]
    agent = hub.requests[0][2]["user-agent"]
    assert agent.startswith("tessera/")
    assert "torch" not in agent
    assert "agent/" not in agent


# Downloading


def test_pull_verifies_places_and_lists(hub, client, catalogue, spark):
    seen = []
    entry = download(client, catalogue).run(Control(seen.append))
    assert entry.path == catalogue.paths.models / "hub/org/Spark-GGUF/spark-F16.gguf"
    assert entry.path.read_bytes() == SPARK.read_bytes()
    assert (entry.id, entry.origin.kind, entry.origin.repo) == ("spark-f16", "hub", "org/Spark-GGUF")
    assert entry.files[0].sha256 == spark.files["spark-F16.gguf"].sha256
    assert entry.details.license == "apache-2.0"
    assert leftovers(catalogue) == ["hub/org/Spark-GGUF/.tessera.json", "hub/org/Spark-GGUF/spark-F16.gguf"]
    assert seen[-1].done == seen[-1].total == SPARK.stat().st_size
    assert {"downloading", "verifying"} <= {p.phase for p in seen}
    hub.requests.clear()
    assert download(client, catalogue).run(Control()).id == "spark-f16"  # nothing is fetched twice
    assert not [path for _, path, _ in hub.requests if "resolve" in path]
    again = Catalogue(catalogue.paths)
    assert again.get("org/Spark-GGUF:F16").origin.revision == "c" * 40
    again.close()


def test_what_came_from_where_survives_the_loss_of_the_catalogue(hub, client, catalogue):
    raw = SPARK.read_bytes()
    hub.add("org/Deep-GGUF", {"Q8_0/deep-Q8_0.gguf": raw, "mmproj-F16.gguf": b"x"})
    repository = client.repository("org/Deep-GGUF")
    Download(client, catalogue, Request(repository, repository.choices()[0].files), QUICK).run(Control())
    before = catalogue.get("org/Deep-GGUF:F16")
    catalogue.close()
    for file in catalogue.paths.state.glob("library.db*"):
        file.unlink()
    again = Catalogue(catalogue.paths)
    assert again.get("deep-q8_0").origin == before.origin
    assert before.origin.expected == {"deep-Q8_0.gguf": hashlib.sha256(raw).hexdigest()}
    again.close()


def test_t3_no_room_is_refused_before_the_first_byte(hub, client, catalogue, spark, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: os_usage(1000))
    with pytest.raises(errors.NotEnoughDisk) as caught:
        download(client, catalogue).run(Control())
    assert caught.value.free_bytes == 1000
    assert caught.value.needed_bytes > SPARK.stat().st_size
    assert hub.sent_bytes == 0


def os_usage(free):
    return type("usage", (), {"total": 10**12, "used": 0, "free": free})()


def test_t3_a_disk_that_fills_up_keeps_the_part_and_goes_on_later(hub, client, catalogue, spark, monkeypatch):
    real, room = os.pwrite, [5 * MB]

    def pwrite(fd, data, offset):
        if room[0] < len(data):
            raise OSError(28, "No space left on device")
        room[0] -= len(data)
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(errors.NotEnoughDisk):
        download(client, catalogue).run(Control())
    assert [e.id for e in catalogue.entries()] == ["spark"]
    assert any(name.endswith(".part") for name in leftovers(catalogue))
    room[0] = 10**9
    hub.settle()
    assert download(client, catalogue).run(Control()).state == "online"
    assert hub.sent_bytes < SPARK.stat().st_size


def test_t6_cut_links_are_mended(hub, client, catalogue, spark):
    hub.faults.cut_after = [100_000, 3_000_000, 0, 2_000_000]
    entry = download(client, catalogue).run(Control())
    assert entry.path.read_bytes() == SPARK.read_bytes()
    assert hub.sent_bytes < SPARK.stat().st_size + 5 * MB  # what had arrived was not fetched again


def test_t6_a_stalled_link_shows_as_stalled_and_resumes(hub, client, catalogue, spark, monkeypatch):
    monkeypatch.setattr("engine.library.hub.client._TIMEOUT", __import__("httpx2").Timeout(1.0))
    monkeypatch.setattr("engine.jobs._STALLED_S", 0.3)
    hub.faults.stall_after, hub.faults.stall_s = [MB] * 4, 5
    seen = []
    entry = download(client, catalogue).run(Control(seen.append))
    assert entry.path.read_bytes() == SPARK.read_bytes()
    assert any(p.stalled and p.speed == 0 for p in seen)


def test_t6_a_dead_link_gives_up_in_words_and_keeps_the_part(hub, client, catalogue, spark):
    hub.faults.storage_down = True
    with pytest.raises(errors.HubUnreachable) as caught:
        download(client, catalogue, patience=Patience(give_up_s=0.3, first_backoff_s=0.05)).run(Control())
    assert hub.endpoint in str(caught.value)
    hub.faults.storage_down = False
    assert download(client, catalogue).run(Control()).state == "online"


def test_a_busy_hub_is_given_the_time_it_asks_for(hub, client, catalogue, spark):
    work = download(client, catalogue)
    hub.faults.too_many, hub.faults.retry_after, hub.faults.server_error = 2, "1", 2
    begin = time.monotonic()
    assert work.run(Control()).state == "online"
    assert time.monotonic() - begin >= 1


def test_t7_wrong_bytes_of_the_right_size_are_quarantined(hub, client, catalogue, spark):
    wrong = bytearray(SPARK.read_bytes())
    wrong[-1] ^= 1
    spark.files["spark-F16.gguf"].lie = bytes(wrong)
    with pytest.raises(errors.HashMismatch) as caught:
        download(client, catalogue).run(Control())
    assert Path(caught.value.quarantine).exists()
    catalogue.refresh()
    assert [e.id for e in catalogue.entries()] == ["spark"]
    spark.files["spark-F16.gguf"].lie = None
    assert download(client, catalogue).run(Control()).state == "online"


def test_wrong_bytes_of_a_small_file_are_seen_too(hub, client, catalogue):
    config = FakeFile(b'{"a": 1}', lfs=False)
    folder = Path("tests/data/spark-hf")
    files = {p.name: FakeFile(p.read_bytes(), lfs=p.suffix == ".safetensors") for p in folder.iterdir()}
    hub.add("org/spark", {**files, "extra.json": config})
    config.data = b'{"a": 2}'
    with pytest.raises(errors.HashMismatch, match=r"extra\.json"):
        download(client, catalogue, "org/spark").run(Control())
    config.data = b'{"a": 1}'
    entry = download(client, catalogue, "org/spark").run(Control())
    assert (entry.format, entry.architecture) == ("safetensors", "LlamaForCausalLM")


def pause_at(share):
    control = Control()

    def watch(progress):
        if progress.done >= share * progress.total:
            control.ask("paused")

    control._on_progress = watch
    return control


def test_pause_keeps_the_bytes_and_resume_fetches_only_the_rest(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = 20 * MB
    with pytest.raises(Paused):
        download(client, catalogue).run(pause_at(0.4))
    catalogue.refresh()
    assert [e.id for e in catalogue.entries()] == ["spark"]
    hub.faults.bytes_per_s = 0
    hub.settle()
    assert download(client, catalogue).run(Control()).path.read_bytes() == SPARK.read_bytes()
    assert hub.sent_bytes < 0.75 * SPARK.stat().st_size


def test_cancel_removes_what_was_fetched(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = 20 * MB
    control = Control()
    threading.Timer(0.3, control.ask, ["cancelled"]).start()
    begin = time.monotonic()
    with pytest.raises(Cancelled):
        download(client, catalogue).run(control)
    assert time.monotonic() - begin < 3
    assert not [name for name in leftovers(catalogue) if not name.endswith(".lock")]


def test_t8_changed_content_on_resume_starts_at_zero(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = 20 * MB
    with pytest.raises(Paused):
        download(client, catalogue).run(pause_at(0.3))
    hub.faults.bytes_per_s = 0
    changed = bytearray(SPARK.read_bytes())
    changed[-1] ^= 255
    stale = download(client, catalogue)  # knows the old hash
    spark.files["spark-F16.gguf"] = FakeFile(bytes(changed))
    with pytest.raises(errors.FileChanged):
        stale.run(Control())
    assert download(client, catalogue).run(Control()).path.read_bytes() == bytes(changed)


def test_t8_a_server_that_ignores_ranges_is_read_from_the_start(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = 20 * MB
    with pytest.raises(Paused):
        download(client, catalogue).run(pause_at(0.3))
    hub.faults.bytes_per_s = 0
    hub.faults.ignore_ranges = True
    hub.faults.cut_after = [False, False, False, MB]  # the first whole stream breaks, too
    assert download(client, catalogue).run(Control()).path.read_bytes() == SPARK.read_bytes()


def test_a_journal_that_lies_or_is_damaged_is_not_believed(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = 20 * MB
    for damage in (b"{", b'{"identity":"x"}'):
        with pytest.raises(Paused):
            download(client, catalogue).run(pause_at(0.3))
        journal = next(catalogue.paths.models.glob(".partial/*/*.json"))
        journal.write_bytes(damage)
    journal.write_bytes(b"")
    next(catalogue.paths.models.glob(".partial/*/*.part")).write_bytes(b"short")
    hub.faults.bytes_per_s = 0
    assert download(client, catalogue).run(Control()).path.read_bytes() == SPARK.read_bytes()


PULL = """
import sys
from engine.jobs import Control
from engine.library.catalogue import Catalogue
from engine.library.hub.client import HubClient
from engine.library.hub.download import Download, Request
client = HubClient(sys.argv[1])
repository = client.repository("org/Spark-GGUF")
notes = set()
control = Control(lambda p: (notes.add(p.note), print(p.done, flush=True)))
entry = Download(client, Catalogue(), Request(repository, repository.choices()[0].files)).run(control)
print("listed", entry.state, sorted(notes), flush=True)
"""


def pull_process(hub):
    environment = {**os.environ, "HF_TOKEN": ""}
    return subprocess.Popen(
        [sys.executable, "-c", PULL, hub.endpoint], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_t9_two_processes_share_one_download(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = 12 * MB
    with pull_process(hub) as other:
        other.stdout.readline()
        while not list(catalogue.paths.models.glob(".partial/*/*.part")):
            time.sleep(0.01)
        notes = set()
        entry = download(client, catalogue).run(Control(lambda p: notes.add(p.note)))
        assert other.wait(30) == 0
    assert entry.path.read_bytes() == SPARK.read_bytes()
    assert "another process fetches this file" in notes
    assert hub.sent_bytes == SPARK.stat().st_size
    assert not list(catalogue.paths.models.glob(".partial/*/*.part"))


def test_t10_kill_9_and_restart_resumes_and_is_never_shown_as_installed(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = 5 * MB
    with pull_process(hub) as other:
        for line in other.stdout:
            if line[0].isdigit() and int(line) > 0 and list(catalogue.paths.models.glob(".partial/*/*.json")):
                break
        other.kill()
    catalogue.refresh()
    assert [e.id for e in catalogue.entries()] == ["spark"]
    hub.faults.bytes_per_s = 0
    hub.settle()
    assert download(client, catalogue).run(Control()).path.read_bytes() == SPARK.read_bytes()
    assert hub.sent_bytes < SPARK.stat().st_size


def test_t26_models_folder_that_goes_away_fails_in_words(hub, client, catalogue, spark):
    work = download(client, catalogue)
    catalogue.paths.models.rename(catalogue.paths.models.with_name("unplugged"))
    catalogue.paths.models.write_text("in the way")
    with pytest.raises(errors.CannotWrite):
        work.run(Control())
    catalogue.paths.models.unlink()
    catalogue.paths.models.with_name("unplugged").rename(catalogue.paths.models)
    assert work.run(Control()).state == "online"


# Planning


def test_a_plan_reads_headers_only_and_a_second_look_reads_nothing(hub, client, catalogue, spark):
    spark.files["broken-Q2_K.gguf"] = FakeFile(b"GGUF" + b"\xff" * 1000)
    first = plan_repository(client, catalogue.paths, "org/Spark-GGUF", judge=lambda p, d: judge_size(20 * MB, p))
    assert [o.choice.label for o in first.options] == ["Q2_K", "F16"]
    assert "version" in first.option("q2_k").problem or "big-endian" in first.option("q2_k").problem
    assert first.best.choice.label == "F16"
    assert first.build_from == "F16"
    assert first.fetched_bytes < 600_000
    hub.requests.clear()
    second = plan_repository(client, catalogue.paths, "org/Spark-GGUF")
    assert second.option("F16").details.n_params == 8_392_960
    assert second.option("F16").bits_per_weight == pytest.approx(16.0, abs=0.1)
    assert [path for _, path, _ in hub.requests if "broken" not in path] == []


def judge_size(limit, parts):
    size = sum(p.file_bytes for p in parts)
    return Verdict(fits=size < limit, needed_bytes=size, available_bytes=limit)


def test_twenty_quantizations_cost_one_vocabulary(hub, client, catalogue):
    repo = hub.add("org/Big-GGUF", repository_of_twenty())
    plan = plan_repository(client, catalogue.paths, "org/Big-GGUF")
    assert len(plan.options) == 20
    assert [o.problem for o in plan.options] == [None] * 20
    assert {o.details.n_params for o in plan.options} == {8_174_862_336}
    assert [o.choice.label for o in plan.options][:2] == ["IQ1_S", "IQ2_XXS"]
    assert plan.option("Q4_K_M").bits_per_weight == pytest.approx(4.5, abs=0.01)
    vocabulary = len(repo.files["Big-8B-Q8_0.gguf"].data.head)
    assert 4 * MB < vocabulary < plan.fetched_bytes < vocabulary + 3 * MB
    hub.settle()
    again = plan_repository(client, catalogue.paths, "org/Big-GGUF")
    assert hub.requests == []
    assert again.fetched_bytes == 0
    assert [o.details for o in again.options] == [o.details for o in plan.options]


def test_a_sibling_with_another_vocabulary_is_read_in_full_and_right(hub, client, catalogue):
    odd = remote_gguf(GgmlType.Q8_0, 7, tokens=3000)
    raw = bytearray(odd.data.head)
    at = raw.index(b"tok000010")
    raw[at - 8 : at + 9] = struct.pack("<Q", 41) + b"x" * 41  # one longer token, in place of one of nine letters
    odd.data = Zeros(bytes(raw), odd.data.size + 32)
    odd.__post_init__()
    hub.add("org/Odd-GGUF", {"odd-Q4_K_M.gguf": remote_gguf(GgmlType.Q4_K, 15, tokens=3000), "odd-Q8_0.gguf": odd})
    plan = plan_repository(client, catalogue.paths, "org/Odd-GGUF")
    assert [(o.choice.label, o.problem) for o in plan.options] == [("Q4_K_M", None), ("Q8_0", None)]
    assert plan.option("Q8_0").bits_per_weight == pytest.approx(8.5, abs=0.01)

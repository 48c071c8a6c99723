"""Downloads over real sockets from the fake hub, with everything that can fail during one."""

import hashlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.core.errors import Cancelled
from engine.jobs.jobs import JobContext, Paused
from engine.library import errors
from engine.library.catalogue import Catalogue
from engine.library.hub import download as hub_download
from engine.library.hub.download import Download, Request, RetryPolicy
from engine.library.hub.file_selection import files_of
from engine.library.hub.partial_file import PartialFile
from engine.library.hub.repository import choices_of
from tests.support.fakes.downloads import MB, QUICK, SPARK, download, leftovers
from tests.support.fakes.fake_hub import FakeFile


def test_pull_verifies_places_and_lists(hub, client, catalogue, spark):
    seen = []
    entry = download(client, catalogue).run(JobContext(seen.append))
    assert entry.path == catalogue.paths.models / "hub/org/Spark-GGUF/spark-F16.gguf"
    assert entry.path.read_bytes() == SPARK.read_bytes()
    assert (entry.id, entry.origin.kind, entry.origin.repo) == ("spark-f16", "hub", "org/Spark-GGUF")
    assert entry.files[0].sha256 == spark.files["spark-F16.gguf"].sha256
    assert entry.details.license == "apache-2.0"
    assert leftovers(catalogue) == ["hub/org/Spark-GGUF/.tessera.json", "hub/org/Spark-GGUF/spark-F16.gguf"]
    assert seen[-1].done == seen[-1].total == SPARK.stat().st_size
    assert {"downloading", "verifying"} <= {p.phase for p in seen}
    hub.requests.clear()
    assert download(client, catalogue).run(JobContext()).id == "spark-f16"  # nothing is downloaded twice
    assert not [path for _, path, _ in hub.requests if "resolve" in path]
    again = Catalogue(catalogue.paths)
    assert again.get("org/Spark-GGUF:F16").origin.revision == "c" * 40
    again.close()


def test_what_came_from_where_survives_the_loss_of_the_catalogue(hub, client, catalogue):
    raw = SPARK.read_bytes()
    hub.add("org/Deep-GGUF", {"Q8_0/deep-Q8_0.gguf": raw, "mmproj-F16.gguf": b"x"})
    repository = client.repository("org/Deep-GGUF")
    Download(client, catalogue, Request(repository, choices_of(repository)[0].files), QUICK).run(JobContext())
    before = catalogue.get("org/Deep-GGUF:F16")
    catalogue.close()
    for file in catalogue.paths.state.glob("library.db*"):
        file.unlink()
    again = Catalogue(catalogue.paths)
    assert again.get("deep-q8_0").origin == before.origin
    assert before.origin.expected == {"deep-Q8_0.gguf": hashlib.sha256(raw).hexdigest()}
    again.close()


def test_no_room_is_refused_before_the_first_byte(hub, client, catalogue, spark, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: os_usage(1000))
    with pytest.raises(errors.NotEnoughDisk) as caught:
        download(client, catalogue).run(JobContext())
    assert caught.value.free_bytes == 1000
    assert caught.value.needed_bytes > SPARK.stat().st_size
    assert hub.sent_bytes == 0


def os_usage(free):
    return type("usage", (), {"total": 10**12, "used": 0, "free": free})()


def test_a_disk_that_fills_up_keeps_the_part_and_goes_on_later(hub, client, catalogue, spark, monkeypatch):
    real, room = os.pwrite, [5 * MB]

    def pwrite(fd, data, offset):
        if room[0] < len(data):
            raise OSError(28, "No space left on device")
        room[0] -= len(data)
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(errors.NotEnoughDisk):
        download(client, catalogue).run(JobContext())
    assert [e.id for e in catalogue.entries()] == ["spark"]
    assert any(name.endswith(".part") for name in leftovers(catalogue))
    room[0] = 10**9
    hub.settle()
    assert download(client, catalogue).run(JobContext()).state == "online"
    assert hub.sent_bytes < SPARK.stat().st_size


def test_cut_links_are_mended(hub, client, catalogue, spark):
    hub.faults.cut_after = [100_000, 3_000_000, 0, 2_000_000]
    entry = download(client, catalogue).run(JobContext())
    assert entry.path.read_bytes() == SPARK.read_bytes()
    assert hub.sent_bytes < SPARK.stat().st_size + 5 * MB  # the received bytes were not downloaded again


def test_a_stalled_link_shows_as_stalled_and_resumes(hub, client, catalogue, spark, monkeypatch):
    monkeypatch.setattr("engine.library.hub.client._TIMEOUT", __import__("httpx2").Timeout(1.0))
    monkeypatch.setattr("engine.jobs.jobs._STALLED_S", 0.3)
    hub.faults.stall_after, hub.faults.stall_s = [MB] * 4, 5
    seen = []
    entry = download(client, catalogue).run(JobContext(seen.append))
    assert entry.path.read_bytes() == SPARK.read_bytes()
    assert any(p.stalled and p.speed == 0 for p in seen)


def test_a_dead_link_gives_up_in_words_and_keeps_the_part(hub, client, catalogue, spark):
    hub.faults.storage_down = True
    with pytest.raises(errors.HubUnreachable) as caught:
        download(client, catalogue, patience=RetryPolicy(give_up_s=0.3, first_backoff_s=0.05)).run(JobContext())
    assert hub.endpoint.partition("://")[2] in str(caught.value)
    hub.faults.storage_down = False
    assert download(client, catalogue).run(JobContext()).state == "online"


def test_a_busy_hub_is_given_the_time_it_asks_for(hub, client, catalogue, spark):
    work = download(client, catalogue)
    hub.faults.too_many, hub.faults.retry_after, hub.faults.server_error = 2, "1", 2
    begin = time.monotonic()
    assert work.run(JobContext()).state == "online"
    assert time.monotonic() - begin >= 1


def test_wrong_bytes_of_the_right_size_are_quarantined(hub, client, catalogue, spark):
    wrong = bytearray(SPARK.read_bytes())
    wrong[-1] ^= 1
    spark.files["spark-F16.gguf"].lie = bytes(wrong)
    with pytest.raises(errors.HashMismatch) as caught:
        download(client, catalogue).run(JobContext())
    assert Path(caught.value.quarantine).exists()
    catalogue.refresh()
    assert [e.id for e in catalogue.entries()] == ["spark"]
    spark.files["spark-F16.gguf"].lie = None
    assert download(client, catalogue).run(JobContext()).state == "online"


def test_a_download_ends_with_its_file_whatever_the_server_sends_then(hub, client, catalogue, spark):
    hub.faults.endless = True
    assert download(client, catalogue).run(JobContext()).path.read_bytes() == SPARK.read_bytes()


def test_wrong_bytes_of_a_small_file_are_seen_too(hub, client, catalogue):
    config = FakeFile(b'{"a": 1}', lfs=False)
    folder = Path("tests/data/spark-hf")
    files = {p.name: FakeFile(p.read_bytes(), lfs=p.suffix == ".safetensors") for p in folder.iterdir()}
    hub.add("org/spark", {**files, "extra.json": config})
    config.data = b'{"a": 2}'
    with pytest.raises(errors.HashMismatch, match=r"extra\.json"):
        download(client, catalogue, "org/spark").run(JobContext())
    config.data = b'{"a": 1}'
    entry = download(client, catalogue, "org/spark").run(JobContext())
    assert (entry.format, entry.architecture) == ("safetensors", "LlamaForCausalLM")


def pause_at(share):
    return stop_at(share, "paused")


def stop_at(share, how):
    control = JobContext()

    def watch(progress):
        if progress.done >= share * progress.total:
            control.ask(how)

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
    assert download(client, catalogue).run(JobContext()).path.read_bytes() == SPARK.read_bytes()
    assert hub.sent_bytes < 0.75 * SPARK.stat().st_size


def test_cancel_removes_what_was_fetched(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = 20 * MB
    with pytest.raises(Cancelled):
        download(client, catalogue).run(stop_at(0.2, "cancelled"))
    assert hub.sent_bytes < SPARK.stat().st_size
    assert not [name for name in leftovers(catalogue) if not name.endswith(".lock")]


def test_changed_content_on_resume_starts_at_zero(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = 20 * MB
    with pytest.raises(Paused):
        download(client, catalogue).run(pause_at(0.3))
    hub.faults.bytes_per_s = 0
    changed = bytearray(SPARK.read_bytes())
    changed[-1] ^= 255
    stale = download(client, catalogue)  # knows the old hash
    spark.files["spark-F16.gguf"] = FakeFile(bytes(changed))
    with pytest.raises(errors.FileChanged):
        stale.run(JobContext())
    assert download(client, catalogue).run(JobContext()).path.read_bytes() == bytes(changed)


def test_a_failure_ends_a_download_whose_other_workers_have_not_begun(hub, client, catalogue, spark, monkeypatch):
    stale = download(client, catalogue)
    changed = bytearray(SPARK.read_bytes())
    changed[-1] ^= 255
    spark.files["spark-F16.gguf"] = FakeFile(bytes(changed))
    monkeypatch.setattr(
        hub_download, "ThreadPoolExecutor", lambda _workers, **names: ThreadPoolExecutor(1, **names)
    )
    with pytest.raises(errors.FileChanged):
        stale.run(JobContext())


def test_a_server_that_ignores_ranges_is_read_from_the_start(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = 20 * MB
    with pytest.raises(Paused):
        download(client, catalogue).run(pause_at(0.3))
    hub.faults.bytes_per_s = 0
    hub.faults.ignore_ranges = True
    hub.faults.cut_after = [False, False, False, MB]  # the first whole stream breaks, too
    assert download(client, catalogue).run(JobContext()).path.read_bytes() == SPARK.read_bytes()


def test_wrong_bytes_are_also_seen_after_a_start_from_zero(hub, client, catalogue, spark):
    spark.files["spark-F16.gguf"].lie = bytes(SPARK.stat().st_size)
    hub.faults.ignore_ranges = True
    with pytest.raises(errors.HashMismatch):
        download(client, catalogue).run(JobContext())


def test_a_range_that_still_arrives_does_not_mix_with_the_stream_from_the_start(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = 8 * MB  # the other ranges are still being read
    hub.faults.whole_below = 1
    assert download(client, catalogue).run(JobContext()).path.read_bytes() == SPARK.read_bytes()
    assert hub.sent_bytes < 2 * SPARK.stat().st_size


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
    assert download(client, catalogue).run(JobContext()).path.read_bytes() == SPARK.read_bytes()


PULL = """
import sys
from engine.jobs.jobs import JobContext
from engine.library.catalogue import Catalogue
from engine.library.hub.client import HubClient
from engine.library.hub.download import Download, Request
from engine.library.hub.repository import choices_of
client = HubClient(sys.argv[1])
repository = client.repository("org/Spark-GGUF")
notes = set()
control = JobContext(lambda p: (notes.add(p.note), print(p.done, flush=True)))
entry = Download(client, Catalogue(), Request(repository, choices_of(repository)[0].files)).run(control)
print("listed", entry.state, sorted(notes), flush=True)
"""


def pull_process(hub):
    environment = {**os.environ, "HF_TOKEN": ""}
    return subprocess.Popen(
        [sys.executable, "-c", PULL, hub.endpoint], stdout=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.process
def test_two_processes_share_one_download(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = MB  # until the second process has met the first
    notes = set()

    def watch(progress):
        notes.add(progress.note)
        if progress.note:
            hub.faults.bytes_per_s = 0

    with pull_process(hub) as other:
        other.stdout.readline()
        while not list(catalogue.paths.models.glob(".partial/*/*.part")):
            time.sleep(0.01)
        entry = download(client, catalogue).run(JobContext(watch))
        assert other.wait(60) == 0
    assert entry.path.read_bytes() == SPARK.read_bytes()
    assert "another process is downloading this file" in notes
    assert hub.sent_bytes == SPARK.stat().st_size
    assert not list(catalogue.paths.models.glob(".partial/*/*.part"))


@pytest.mark.process
def test_kill_9_and_restart_resumes_and_is_never_shown_as_installed(hub, client, catalogue, spark):
    hub.faults.bytes_per_s = MB
    with pull_process(hub) as other:
        for line in other.stdout:
            if line[0].isdigit() and int(line) > 0 and list(catalogue.paths.models.glob(".partial/*/*.json")):
                break
        other.kill()
    catalogue.refresh()
    assert [e.id for e in catalogue.entries()] == ["spark"]
    hub.faults.bytes_per_s = 0
    hub.settle()
    assert download(client, catalogue).run(JobContext()).path.read_bytes() == SPARK.read_bytes()
    assert hub.sent_bytes < SPARK.stat().st_size


def test_models_folder_that_goes_away_fails_in_words(hub, client, catalogue, spark):
    work = download(client, catalogue)
    catalogue.paths.models.rename(catalogue.paths.models.with_name("unplugged"))
    catalogue.paths.models.write_text("in the way")
    with pytest.raises(errors.CannotWrite):
        work.run(JobContext())
    catalogue.paths.models.unlink()
    catalogue.paths.models.with_name("unplugged").rename(catalogue.paths.models)
    assert work.run(JobContext()).state == "online"


def test_the_publishers_sampling_is_kept_beside_a_gguf_file(hub, client, catalogue, spark):
    config = b'{"temperature": 0.4, "top_k": 9, "do_sample": true}'
    spark.files["generation_config.json"] = FakeFile(config, lfs=False)
    repository = client.repository("org/Spark-GGUF")
    files = files_of(repository, choices_of(repository)[0])
    entry = Download(client, catalogue, Request(repository, files), QUICK).run(JobContext())
    assert (entry.path.parent / "generation_config.json").read_bytes() == config
    assert entry.details.publisher_sampling == {"temperature": 0.4, "top_k": 9}
    assert catalogue.get(entry.id).details.publisher_sampling["top_k"] == 9
    assert {Path(f.path).suffix for f in entry.files} == {".gguf"}


def opened(path, size_bytes=10, segment_bytes=4):
    return PartialFile(path / "x.part", "hash", size_bytes, segment_bytes)


def test_a_journal_claims_only_bytes_that_were_flushed_and_forgets_them_at_a_restart(tmp_path, monkeypatch):
    order = []
    flush, move = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append("flushed"), flush(fd))[1])
    monkeypatch.setattr(Path, "replace", lambda path, to: (order.append("journal"), move(path, to))[1])
    part = opened(tmp_path)
    part.write(0, b"abcd")
    part.save()
    assert order == ["flushed", "journal"]
    assert opened(tmp_path).done_bytes == 4
    part.restart()
    assert opened(tmp_path).done_bytes == 0


def test_a_closed_partial_file_holds_no_descriptor_and_takes_no_bytes(tmp_path):
    part = opened(tmp_path)
    descriptor = part._fd
    part.close()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)
    part.write(0, b"abcd")
    assert part.done_bytes == 0


def test_a_journal_whose_segments_have_no_bytes_is_not_believed(tmp_path):
    opened(tmp_path).save()
    file = tmp_path / "x.json"
    file.write_bytes(file.read_bytes().replace(b'"segment_bytes":4', b'"segment_bytes":0'))
    assert opened(tmp_path).missing() == [0, 1, 2]

"""Newer versions of models on the hub: reported, downloaded, and the older one kept until the newer one works."""

import pytest

from engine.core.errors import InputFault
from engine.jobs.jobs import JobContext, Paused
from engine.library import errors
from engine.library.hub.download import Download
from engine.library.hub.newer import look_for_newer, newest
from tests.support.fakes.downloads import MB, QUICK, SPARK, download, leftovers
from tests.support.fakes.fake_hub import FakeFile

NAME = "spark-F16.gguf"
PLACE = ["hub/org/Spark-GGUF/.tessera.json", f"hub/org/Spark-GGUF/{NAME}"]


def changed(raw):
    """A different file that is also a model: its last weights differ."""
    return raw[:-64] + bytes(64)


@pytest.fixture
def installed(client, catalogue, spark):
    return download(client, catalogue).run(JobContext())


def publish(hub, raw):
    hub.repos["org/Spark-GGUF"].files[NAME] = FakeFile(raw)
    hub.repos["org/Spark-GGUF"].sha = "d" * 40


def update(client, catalogue, entry):
    return Download(client, catalogue, newest(catalogue, client, entry), QUICK)


def test_a_newer_version_is_told_and_takes_the_place_of_the_older(hub, client, catalogue, installed):
    assert look_for_newer(catalogue, client) == ((), {})
    raw = changed(SPARK.read_bytes())
    publish(hub, raw)
    [found], problems = look_for_newer(catalogue, client)
    assert (found.model, found.revision, found.size_bytes, problems) == (installed.id, "d" * 40, len(raw), {})
    entry = update(client, catalogue, installed).run(JobContext())
    assert (entry.id, entry.origin.revision) == (installed.id, "d" * 40)
    assert entry.path.read_bytes() == raw
    assert leftovers(catalogue) == PLACE
    assert look_for_newer(catalogue, client) == ((), {})


def test_a_version_that_cannot_be_read_leaves_the_one_before_it(hub, client, catalogue, installed):
    publish(hub, b"GGUF" + bytes(5000))
    with pytest.raises(errors.BadUpdate, match="the previous one was kept"):
        update(client, catalogue, installed).run(JobContext())
    assert installed.path.read_bytes() == SPARK.read_bytes()
    assert catalogue.get(installed.id).state == "online"
    assert leftovers(catalogue) == PLACE
    [found], _ = look_for_newer(catalogue, client)  # the note describes the file that is there, not the attempt
    assert found.revision == "d" * 40


def test_an_update_that_is_stopped_goes_on_and_the_older_one_answers_meanwhile(hub, client, catalogue, installed):
    raw = changed(SPARK.read_bytes())
    publish(hub, raw)
    hub.settle()
    hub.faults.bytes_per_s = 20 * MB

    def pause_early(progress):
        if progress.done > len(raw) // 3:
            control.ask("paused")

    control = JobContext(pause_early)
    with pytest.raises(Paused):
        update(client, catalogue, installed).run(control)
    hub.faults.bytes_per_s = 0
    assert installed.path.read_bytes() == SPARK.read_bytes()
    assert update(client, catalogue, installed).run(JobContext()).path.read_bytes() == raw
    assert hub.sent_bytes < 1.5 * len(raw), "what had come was not fetched again"
    assert leftovers(catalogue) == PLACE


def test_a_process_killed_between_placing_and_looking_is_made_good(hub, client, catalogue, installed, monkeypatch):
    publish(hub, b"GGUF" + bytes(5000))
    with monkeypatch.context() as patch:
        patch.setattr(Download, "_list_or_restore", lambda self: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            update(client, catalogue, installed).run(JobContext())
    assert installed.path.read_bytes() != SPARK.read_bytes()
    with pytest.raises(errors.BadUpdate):
        update(client, catalogue, installed).run(JobContext())
    assert installed.path.read_bytes() == SPARK.read_bytes()


def test_a_repository_that_is_gone_is_told_and_what_is_no_download_is_refused(hub, client, catalogue, installed):
    del hub.repos["org/Spark-GGUF"]
    found, problems = look_for_newer(catalogue, client)
    assert found == ()
    assert "org/Spark-GGUF" in problems
    bundled = next(entry for entry in catalogue.entries() if entry.origin.kind == "bundled")
    with pytest.raises(InputFault, match="not downloaded from a hub"):
        newest(catalogue, client, bundled)

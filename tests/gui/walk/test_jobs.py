"""Jobs of the server as a user follows them: started, completed, paused, cancelled, failed, and interrupted."""

import os
import signal

import pytest

from tests.gui.walk.walker import ROOT
from tests.support.servers import wait_for

pytestmark = pytest.mark.timeout(900)  # a model is measured, on a busy computer
SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"
LIBRARY, FIT, MEASURE = "window.page('library')", "window.page('fit')", "window.page('bench')"
JOBS = "list(desktop.jobs.by_id.values())"


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def card_of(words):
    return f"next(c for c in {LIBRARY}.cards if {words!r} in c.model.id)"


def add_copy(walk, file):
    walk.click("Add a file or folder…", LIBRARY)
    walk.click("A GGUF file…")
    walk.choose_file(file)
    walk.click("Copy it", LIBRARY)


def test_a_file_is_copied_checked_and_found_changed(walk, tmp_path):
    walk.go("Library")
    file = tmp_path / "traveller.gguf"
    other = bytearray(SPARK.read_bytes())
    other[-1] ^= 1  # the same content would not be copied again
    file.write_bytes(other)
    add_copy(walk, file)
    walk.ends("import", 0, "done")
    walk.until(f"'is ready' in {LIBRARY}.banner.text and any('traveller' in c.model.id for c in {LIBRARY}.cards)")
    copied = next((walk.home / "models").rglob("traveller*.gguf"))
    assert copied.read_bytes() == other

    walk.click(walk.ask(f"'More about ' + {card_of('traveller')}.model.name"), LIBRARY)
    walk.click("Check the file")
    walk.ends("verify", 0, "done")
    walk.until(f"any(words in {LIBRARY}.banner.text for words in ('is intact', 'was read completely'))")

    raw = bytearray(copied.read_bytes())
    raw[-1000] ^= 1
    told = copied.stat()
    copied.write_bytes(raw)
    os.utime(copied, ns=(told.st_atime_ns, told.st_mtime_ns))  # a bad disk gives no time estimate
    walk.click(walk.ask(f"'More about ' + {card_of('traveller')}.model.name"), LIBRARY)
    walk.click("Check the file")
    walk.until(f"'is damaged' in {LIBRARY}.banner.text")
    walk.picture("damaged")


def test_a_file_that_is_no_model_is_not_copied_and_says_why(walk, tmp_path):
    walk.go("Library")
    bad = tmp_path / "impostor.gguf"
    bad.write_bytes(b"GGUF" + bytes(4000))
    before = sorted((walk.home / "models").rglob("*"))
    if walk.ask(f"{LIBRARY}.banner.isVisible()"):  # of the previous test
        walk.click("Close", f"{LIBRARY}.banner")
    add_copy(walk, bad)
    walk.ends("import", 1, "failed")
    assert not walk.ask(f"any('impostor' in c.model.id for c in {LIBRARY}.cards)")
    wait_for(lambda: sorted((walk.home / "models").rglob("*")) == before, 60, "the end of what was begun")
    walk.find("Importing impostor.gguf: not done", LIBRARY)
    walk.click("Remove from this list", LIBRARY)
    walk.until(f"'Importing' not in says({LIBRARY}._here.window()).replace({LIBRARY}.banner.text, '')")


def test_a_download_is_paused_resumed_and_cancelled(walk, hub):
    walk.go("Library")
    walk.click("Find models")
    walk.click("Search models")
    walk.type("Other")
    walk.key("Return")
    walk.until("'Other-GGUF' in says()")
    walk.click("What fits?")
    walk.until("'Q8_0' in says()")
    hub.faults.bytes_per_s = 300_000  # a minute for the whole file: it is paused and cancelled meanwhile
    try:
        walk.click("Download")
        walk.ends("pull", 0, "running")
        walk.until(f"' of ' in says({LIBRARY}) and 'Downloading' in says({LIBRARY})")
        walk.picture("download")
        walk.click("Pause", LIBRARY)
        walk.ends("pull", 0, "paused")
        walk.until(f"'paused' in says({LIBRARY})")
        walk.click("Resume", LIBRARY)
        walk.ends("pull", 0, "running")
        walk.click("Cancel", LIBRARY)
        walk.ends("pull", 0, "cancelled")
        walk.until("not spot('Cancel', window)")
    finally:
        hub.faults.bytes_per_s = 0
    walk.click("Download")
    walk.ends("pull", 1, "done")
    walk.click("On this computer")
    walk.until(f"any('other' in c.model.id.lower() for c in {LIBRARY}.cards)")


def test_making_a_model_fit_is_cancelled_and_leaves_nothing(walk):
    walk.go("Library")
    walk.click("On this computer")
    walk.click(walk.ask(f"'Make ' + {card_of('spark')}.model.name + ' fit'"), LIBRARY)
    walk.until(f"{FIT}.start.isEnabled()")
    walk.click("Test this model", FIT)
    walk.ends("measure", 0, "done")
    walk.until(f"'From a quick test of this model' in says({FIT})")
    walk.picture("fit-tested")
    walk.click("Make it fit", f"{FIT}.start")
    walk.ends("quantize", 0, "running")
    walk.until(f"'Step ' in says({FIT}) and ' of 6' in says({FIT})")
    walk.picture("fit-running")
    walk.click("Cancel", FIT)
    walk.ends("quantize", 0, "cancelled")
    walk.until("not spot('Cancel', window)")
    walk.until(f"{FIT}.start.isEnabled()")
    wait_for(lambda: not list((walk.home / "models").rglob("spark-*iB*")), 60, "the end of the half file")


def test_an_original_is_downloaded_made_to_fit_and_deleted(walk, hub):
    hub.add("org/Maker-GGUF", {"maker-F16.gguf": SPARK.read_bytes()}, gguf={"total": 8_400_000})
    walk.go("Library")
    walk.click("Find models")
    walk.fill("Search models", "Maker", LIBRARY)
    walk.key("Return")
    walk.until(f"'Maker-GGUF' in says({LIBRARY})")
    walk.click("What fits?", LIBRARY)
    walk.until(f"'Make your own file from the original' in says({LIBRARY})")
    walk.choose("Size of the new file", "4.5 bits per weight", LIBRARY)
    walk.choose("How thorough", "Instant", LIBRARY)
    walk.click("Delete the original afterwards", LIBRARY)
    hub.faults.bytes_per_s = 300_000
    try:
        walk.click("Download the original and make it fit", LIBRARY)
        walk.ends("quantize", 1, "running")
        walk.until(f"' of ' in says({LIBRARY}) and 'Downloading' in says({LIBRARY})")
        walk.picture("fit-from-hub")
        walk.click("Pause", LIBRARY)
        walk.ends("quantize", 1, "paused")
    finally:
        hub.faults.bytes_per_s = 0
    walk.click("Resume", LIBRARY)
    walk.ends("quantize", 1, "done", 600)
    walk.until(f"'is in your library' in {LIBRARY}.banner.text")
    walk.click("On this computer", LIBRARY)
    walk.until(f"[c.model.origin.kind for c in {LIBRARY}.cards if 'maker' in c.model.id] == ['built']")
    assert not list((walk.home / "models" / "hub").rglob("maker*"))


def test_a_measurement_is_watched_to_its_end_and_stopped(walk):
    walk.go("Measure")
    walk.until(f"{MEASURE}.start.isEnabled()")
    walk.fill("Prompt lengths in tokens", "64,128,256,512,768,896", MEASURE)  # long enough to be stopped
    walk.click("Measure", f"{MEASURE}.start")
    walk.ends("measure", 1, "running")
    walk.click("Stop", MEASURE)
    walk.ends("measure", 1, "cancelled")
    walk.until(f"not {MEASURE}.stop.isVisible() and {MEASURE}.start.isEnabled()")
    walk.fill("Prompt lengths in tokens", "64,128", MEASURE)
    walk.click("Measure", f"{MEASURE}.start")
    walk.until(f"{MEASURE}.progress.isVisible() and {MEASURE}.note.text()")
    walk.ends("measure", 2, "done", 600)
    walk.until(f"{MEASURE}.table.rowCount() == 1 and {MEASURE}.decode.isVisible()")
    walk.picture("measured")


def test_making_a_model_fit_is_stopped_with_its_first_version(walk):
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    before = len(walk.states("quantize"))
    walk.click("Make it fit", f"{FIT}.start")
    walk.ends("quantize", before, "running")
    walk.until(f"'a first version is ready' in says({FIT})")
    walk.picture("fit-first-version")
    walk.click("Stop and keep the file so far", FIT)
    walk.ends("quantize", before, "done")
    walk.until(f"'Stopped early' in says({FIT})")


def test_a_server_that_is_killed_at_work_says_what_became_of_it(walk):
    """The job continues by itself or reports that it was interrupted; nothing waits forever."""
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    walk.choose("How thorough", "Instant", FIT)
    walk.until(f"{FIT}.tier.currentData() == 'instant' and {FIT}.start.isEnabled()")
    before = len(walk.states("quantize"))
    walk.click("Make it fit", f"{FIT}.start")
    walk.ends("quantize", before, "running")
    os.kill(walk.server()["pid"], signal.SIGKILL)
    walk.until("'It is running again' in window.banner.text and desktop.services.models.reachable")
    walk.until(
        f"{JOBS}[-1].kind.value == 'quantize' and {JOBS}[-1].state in ('failed', 'paused', 'cancelled', 'done')",
        600,
    )
    walk.picture("cut-off")
    state = walk.states("quantize")[before]
    if state in {"failed", "paused"}:
        walk.until(f"spot('Resume', {FIT})")
        walk.click("Resume", FIT)
        walk.ends("quantize", before, "done", 1200)
    walk.until(f"'Done' in {FIT}.banner.text")

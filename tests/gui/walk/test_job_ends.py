"""The ends of jobs: an imported folder, a converted one, a cancelled import, a quantization that is impossible."""

import contextlib
import shutil

import psutil
import pytest

from tests.gui.walk.walker import ROOT
from tests.support.models.hollow_model import HollowModel
from tests.support.servers import wait_for

pytestmark = pytest.mark.timeout(900)  # a model is measured, on a busy computer
SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"
FOLDER = ROOT / "tests" / "data" / "spark-hf"
LIBRARY, FIT = "window.page('library')", "window.page('fit')"


@pytest.fixture(scope="module")
def walk(open_window, tmp_path_factory):
    """A library with a model whose file disappears."""
    home = tmp_path_factory.mktemp("walk")
    (home / "models").mkdir()
    shutil.copyfile(SPARK, home / "models" / "wanderer.gguf")
    made = open_window(home=home)
    made.go("Library")
    return made


def card_of(words):
    return f"next((c for c in {LIBRARY}.cards if {words!r} in c.model.id), None)"


def names(walk):
    return [model["id"] for model in walk.manage("models")["models"]]


def files(walk):
    """Files below the models folder; None while it is being moved."""
    try:
        return sorted(file for file in (walk.home / "models").rglob("*") if file.is_file())
    except OSError:
        return None


def test_a_search_that_failed_and_a_look_that_failed_are_tried_again(walk, hub):
    walk.click("Find models")
    hub.faults.server_error = 100
    try:
        walk.fill("Search models", "Spark", LIBRARY)
        walk.key("Return")
        walk.until(f"'cannot be reached' in {LIBRARY}.hub.banner.text")
    finally:
        hub.faults.server_error = 0
    walk.click("Try again", f"{LIBRARY}.hub.banner")
    walk.until(f"'Spark-GGUF' in says({LIBRARY})")
    kept = hub.repos.pop("org/Spark-GGUF")
    try:
        walk.click("What fits of Spark-GGUF?", LIBRARY)
        walk.until(f"spot('Try again', {LIBRARY}.hub.banner)")
    finally:
        hub.repos["org/Spark-GGUF"] = kept
    walk.click("Try again", f"{LIBRARY}.hub.banner")
    walk.until(f"'Q4_K_M' in says({LIBRARY})")


def test_the_speed_of_a_model_that_is_not_here_is_tried(walk):
    walk.click("Test the speed", LIBRARY)
    walk.until(f"'Measuring a simulated model' in says({LIBRARY})")
    walk.ends("measure", 0, "done", 600)
    walk.click("← Back", LIBRARY)
    walk.click("What fits of Spark-GGUF?", LIBRARY)
    walk.until(f"'measured on a simulated model' in says({LIBRARY})")
    walk.picture("tried")
    assert "wanderer" in names(walk)
    assert not any("spark-gguf" in name.lower() for name in names(walk)), "only its header was fetched"
    walk.click("On this computer")


def test_a_model_whose_file_is_gone_is_removed_from_the_list(walk):
    walk.until(f"{card_of('wanderer')} is not None")
    (walk.home / "models" / "wanderer.gguf").unlink()
    walk.until(f"'Its file was moved or deleted' in says({LIBRARY})")
    walk.click("Remove", card_of("wanderer"))
    walk.click("Remove", f"{LIBRARY}.banner")
    walk.until(f"'was removed' in {LIBRARY}.banner.text and {card_of('wanderer')} is None")
    assert "wanderer" not in names(walk)


def test_a_folder_of_safetensors_is_copied_whole(walk, tmp_path):
    folder = shutil.copytree(FOLDER, tmp_path / "harbour")
    walk.click("Add a file or folder…", LIBRARY)
    walk.click("A folder (safetensors, ONNX)…")
    walk.choose_file(folder)
    walk.click("Copy it", LIBRARY)
    walk.ends("import", 0, "done")
    walk.until(f"'is ready' in {LIBRARY}.banner.text and {card_of('harbour')} is not None")
    walk.picture("folder")
    copied = next((walk.home / "models").rglob("harbour"))
    for file in FOLDER.iterdir():
        assert (copied / file.name).read_bytes() == file.read_bytes()


def test_a_conversion_is_watched_to_its_end_and_its_model_answers(walk, tmp_path):
    """Started by another program; the window shows it like its own."""
    folder = shutil.copytree(FOLDER, tmp_path / "pier")
    walk.manage("models/convert", {"source": str(folder)})
    walk.until(f"'Converting pier' in says({LIBRARY})")
    walk.picture("converting")
    walk.ends("convert", 0, "done", 600)
    walk.until(f"'is ready' in {LIBRARY}.banner.text and {card_of('pier')} is not None")
    walk.until(f"'Converting' not in says({LIBRARY})")
    made = next((walk.home / "models").rglob("pier*.gguf"))
    assert made.read_bytes()[:4] == b"GGUF"
    walk.click("Chat with it", f"{LIBRARY}.banner")
    walk.until("chat.isVisible() and 'pier' in chat.controller.conversation.model and chat.composer.ready")
    walk.say("What is Tessera?")
    assert walk.ask("chat.controller.tree.path()[-1].status") == "complete"
    assert "pier" in walk.loaded()[0]


def test_an_import_is_given_up_and_leaves_nothing(walk, tmp_path):
    walk.go("Library")
    large = HollowModel(tmp_path / "large.gguf").write(
        layers=8, embd=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=32000
    )  # 4 GB, completely sparse
    before, bytes_before = files(walk), large.stat().st_size
    number = len(walk.states("import"))
    walk.click("Add a file or folder…", LIBRARY)
    walk.click("A GGUF file…")
    walk.choose_file(large)
    walk.click("Copy it", LIBRARY)
    walk.ends("import", number, "running")
    walk.click("Cancel", LIBRARY)
    walk.ends("import", number, "cancelled")
    walk.until(f"'Importing' not in says({LIBRARY})")
    wait_for(lambda: files(walk) == before, 120, "the end of what was copied")
    assert large.stat().st_size == bytes_before
    assert not any("large" in name for name in names(walk))


def test_a_fit_whose_work_is_killed_says_so_and_is_put_away(walk):
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    before = files(walk)
    walk.click("Make it fit", f"{FIT}.start")
    walk.ends("quantize", 0, "running")
    server = psutil.Process(walk.server()["pid"])

    def workers():
        found = []
        for child in server.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found += [child] if "quantize.job.worker" in child.cmdline() else []
        return found

    def failed():
        for worker in workers():  # one that finished nevertheless is followed by another
            with contextlib.suppress(psutil.Error):
                worker.kill()  # like a system without memory
        return walk.states("quantize")[0] == "failed"

    wait_for(workers, 240, "a process that measures")
    wait_for(failed, 240, "the end of the job")
    walk.until(f"'process was killed' in {FIT}.banner.text")
    walk.until(f"'fit: not done' in says({FIT})")
    walk.picture("fit-failed")
    wait_for(lambda: files(walk) == before, 120, "the end of what was written")
    walk.click("Remove from this list", FIT)
    walk.until(f"'not done' not in says({FIT})")
    walk.until(f"{FIT}.start.isEnabled()")  # and it can be tried again

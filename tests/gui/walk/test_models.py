"""Finding, updating, loading, measuring: the hub's filters, every load setting, the power card, stored figures."""

import csv
import json
import shutil
from functools import partial

import pytest

from tests.gui.walk.walker import ROOT
from tests.support.fakes.fake_hub import FakeFile
from tests.support.servers import wait_for

pytestmark = pytest.mark.timeout(900)  # a model is measured, on a busy computer
LIBRARY, MEASURE, DEVICES = "window.page('library')", "window.page('bench')", "window.page('devices')"
CLIPBOARD = "app.clipboard().text()"
NAME = "spark-Q4_K_M.gguf"


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def is_asked(hub, before, sent):
    """Whether a request with that arrived after the first `before`."""
    return any(sent in path for _, path, _ in hub.requests[before:])


def test_the_hub_is_asked_with_its_filters_and_a_repository_is_opened_and_left(walk, hub):
    walk.go("Library")
    walk.click("Find models")
    walk.fill("Search models", "Spark")
    for name, entry, sent in (
        ("Kind of model", "Chat", "pipeline_tag"),
        ("Order", "Most likes", "sort=likes"),
        ("Parameters", "Up to 3 B", "num_parameters"),
    ):
        before = len(hub.requests)
        walk.choose(name, entry, LIBRARY)
        asked = partial(is_asked, hub, before, sent)
        wait_for(asked, 60, f"a request with {sent}")
        walk.until("'Spark-GGUF' in says() or 'Nothing found' in says()")
    for name, entry in (("Kind of model", "Any kind"), ("Order", "Trending"), ("Parameters", "Any size")):
        before = len(hub.requests)
        walk.choose(name, entry, LIBRARY)
        wait_for(partial(is_asked, hub, before, "search=Spark"), 60, "another search")
    walk.click("What fits of Spark-GGUF?", LIBRARY)
    walk.until("'Q4_K_M' in says()")
    walk.click("Also other uploads of this model", LIBRARY)
    walk.click("Compare by loss", LIBRARY)
    walk.until("'expected loss' in says() and 'org/Other-GGUF:Q8_0' in says()")  # which counts as the original
    assert walk.ask("says().split(' | ').count('Q4_K_M')") == 1, "each file stands once"
    walk.picture("compared")
    walk.click("← Back", LIBRARY)
    walk.until("'by org' in says()")
    walk.fill("Search models", "", LIBRARY)
    walk.key("Return")
    walk.until("'These fit this computer.' in says()")
    walk.click("All sizes", LIBRARY)
    walk.until(f"'has no repository' in {LIBRARY}.hub.banner.text")  # this hub has two, and no recommended model
    walk.click("On this computer")


def test_a_newer_version_is_told_and_fetched_by_one_click(walk, hub):
    raw = (ROOT / "assets" / "models" / "spark-f16.gguf").read_bytes()
    repo = hub.repos["org/Spark-GGUF"]
    first = repo.files[NAME]
    try:
        walk.go("Library")
        walk.click("Find models")
        walk.fill("Search models", "Spark")
        walk.key("Return")
        walk.until("'Spark-GGUF' in says()")
        walk.click("What fits?")
        walk.click("Download")
        walk.until(f"{LIBRARY}.isVisible() and any(c.model.origin.kind == 'hub' for c in {LIBRARY}.cards)")
        repo.files[NAME], repo.sha = FakeFile(raw[:-64] + bytes(64)), "d" * 40
        walk.click("On this computer")
        walk.click("Check for updates", LIBRARY)
        walk.until(f"'Newer version on the hub' in says({LIBRARY})")
        walk.picture("newer")
        walk.click("Update", LIBRARY)
        walk.until(f"'is ready' in {LIBRARY}.banner.text")
        walk.until(f"any(c.model.origin.revision == 'd' * 40 for c in {LIBRARY}.cards)")
        walk.until(f"'Newer version' not in says({LIBRARY})")
        placed = next((walk.home / "models").rglob(NAME))
        assert placed.read_bytes() == raw[:-64] + bytes(64)
        wait_for(lambda: not list((walk.home / "models").rglob("*.previous")), 60, "the end of the older one")
    finally:
        repo.files[NAME], repo.sha = first, "c" * 40


def test_every_load_setting_is_kept_and_taken_back(walk):
    walk.go("Library")
    file = walk.home / "config" / "model_settings.json"
    walk.click("More about Spark (demo)", LIBRARY)
    walk.click("Load settings…")
    walk.until("app.activeModalWidget() is not None and 'Runs on' in says()")
    walk.fill("CPU threads", "1")
    walk.fill("Concurrent requests", "2")
    walk.choose("KV cache type", "q8_0 (8.5 bits)")
    walk.tick("Keep it loaded until it is ejected")
    automatic = "app.activeModalWidget().own_context"
    walk.click("Context length")
    walk.until(f"not {automatic}.isChecked()")
    walk.tick("Automatic", automatic)
    walk.until(f"{automatic}.isChecked()")
    walk.click("Save")
    walk.dialog_closed()

    def stored():
        return json.loads(file.read_text())["data"]["models"]

    wait_for(lambda: file.exists() and "spark" in stored(), 60, "what is kept")
    kept = stored()["spark"]
    assert (kept["n_threads"], kept["n_parallel"]) == (1, 2)
    assert kept["keep_loaded"]
    assert "q8_0" in json.dumps(kept)
    assert kept.get("n_ctx") is None, "the slider was moved, and given back"
    walk.click("More about Spark (demo)", LIBRARY)
    walk.click("Load settings…")
    walk.until("app.activeModalWidget() is not None and 'Runs on' in says()")
    walk.click("Reset to automatic")
    walk.click("Save")
    walk.dialog_closed()
    wait_for(lambda: "spark" not in stored(), 60, "the end of what was kept")


def test_new_files_are_found_and_a_model_is_chatted_with(walk):
    raw = (ROOT / "assets" / "models" / "spark-f16.gguf").read_bytes()
    (walk.home / "models").mkdir(exist_ok=True)
    (walk.home / "models" / "newcomer.gguf").write_bytes(raw)
    walk.click("Add a file or folder…", LIBRARY)
    walk.click("Look for new files")
    walk.until(f"any('newcomer' in c.model.id for c in {LIBRARY}.cards)")
    walk.click(walk.ask(f"'Chat with ' + next(c for c in {LIBRARY}.cards if 'newcomer' in c.model.id).model.name"))
    walk.until("chat.isVisible() and 'newcomer' in chat.controller.conversation.model")
    walk.go("Library")


def test_folders_are_linked_and_unlinked(walk):
    mine, studio = walk.home / "drive", walk.home / "user" / ".lmstudio" / "models"
    for folder, name in ((mine, "lantern"), (studio, "harbour")):
        folder.mkdir(parents=True)
        shutil.copyfile(ROOT / "assets" / "models" / "spark-f16.gguf", folder / f"{name}.gguf")

    def has(name):
        return f"any({name!r} in c.model.id for c in {LIBRARY}.cards)"

    walk.go("Library")
    walk.click("Add a file or folder…", LIBRARY)
    walk.click("Linked folders…")
    walk.click("Link a folder…")
    walk.name_file(mine)
    walk.key("Return")
    walk.until("'Linked. Its models are in the library now.' in says()")
    walk.click(f"Link {studio}")
    walk.until(f"spot('Unlink {studio}') and {has('harbour')} and {has('lantern')}")
    assert "LM Studio · 1 model" in walk.ask("says()")
    walk.picture("linked-folders")
    walk.click(f"Unlink {mine}")
    walk.until("'Unlinked. 1 model was taken from the list.' in says()")
    walk.until(f"not {has('lantern')} and {has('harbour')}")
    walk.click("Undo", "app.activeModalWidget()")
    walk.until(f"spot('Unlink {mine}') and {has('lantern')}")
    walk.click(f"Unlink {mine}")
    walk.click(f"Unlink {studio}")
    walk.until("'No folder is linked yet.' in says()")
    walk.click("Done", "app.activeModalWidget()")
    walk.dialog_closed()
    walk.until(f"not {has('lantern')} and not {has('harbour')}")
    assert (mine / "lantern.gguf").exists()
    assert (studio / "harbour.gguf").exists()


def test_what_was_measured_is_saved_and_the_fastest_settings_are_found(walk):
    walk.go("Measure")
    walk.until(f"{MEASURE}.start.isEnabled() and {MEASURE}._shapes")
    shapes = [f"{MEASURE}.model.itemText({n})" for n in range(20)]
    walk.choose("Model or shape to measure", next(s for s in map(walk.ask, shapes) if "not downloaded" in s))
    walk.until(f"{MEASURE}.mix.isVisible()")
    walk.choose("Quantization of the simulated model", walk.ask(f"{MEASURE}.mix.itemText(1)"))
    walk.choose("Model or shape to measure", "Spark (demo)")
    walk.until(f"'Forecast' in {MEASURE}.decode.lines and 'These are forecasts' in says({MEASURE})")
    walk.fill("Prompt lengths in tokens", "64", MEASURE)
    walk.fill("Repeats", "1", MEASURE)
    walk.click("Measure", f"{MEASURE}.start")
    walk.until(f"{MEASURE}.table.rowCount() == 1 and {MEASURE}.csv.isVisible()", 300)
    walk.until(f"'Measured points' in {MEASURE}.decode.lines and 'After 64 tokens' in says({MEASURE})")
    assert [length for length, _ in walk.ask(f"{MEASURE}.decode.lines['Measured points']")] == [64.0]
    for button, ending in (("Save image", "png"), ("Save CSV", "csv"), ("Save JSON", "json")):
        file = walk.home / f"kept.{ending}"
        walk.click(button, MEASURE)
        walk.choose_file(file)
        walk.until(f"'Saved as' in {MEASURE}.banner.text and {file.name!r} in {MEASURE}.banner.text")
    assert (walk.home / "kept.png").read_bytes().startswith(b"\x89PNG")
    assert len(list(csv.reader((walk.home / "kept.csv").read_text().splitlines()))) >= 2
    assert json.loads((walk.home / "kept.json").read_text())
    walk.click("Find the fastest settings", MEASURE)
    walk.until(f"{MEASURE}.stop.isVisible()")
    walk.click("Stop", MEASURE)
    walk.until(f"not {MEASURE}.stop.isVisible()", 120)
    walk.click("Find settings that save energy", MEASURE)  # without a meter, it says so
    walk.until(f"'for energy' in {MEASURE}.banner.text or 'idle' in {MEASURE}.note.text()", 120)
    if walk.ask(f"{MEASURE}.stop.isVisible()"):
        walk.click("Stop", MEASURE)
    walk.until(f"not {MEASURE}.stop.isVisible()", 120)


def test_the_power_that_work_may_draw_is_bounded(walk):
    # Without a power meter, the window offers these limits only if another program has set some.
    walk.manage("power", {"cap_w": 60, "battery_percent": 50}, "PUT")
    walk.go("Devices")
    walk.until(f"{DEVICES}.power.battery.text() == '50'")
    walk.choose("Mode", "Quiet", DEVICES)
    walk.fill("Power limit", "40", DEVICES)
    walk.fill("Battery budget", "10", DEVICES)
    walk.click("Apply", f"{DEVICES}.power")
    walk.until(f"not {DEVICES}.power.use.isEnabled()")
    wanted = {"mode": "quiet", "cap_w": 40, "battery_percent": 10}
    wait_for(lambda: wanted.items() <= walk.manage("power")["limits"].items(), 60, "the limits on the server")
    walk.choose("Mode", "Server's start options", DEVICES)
    walk.fill("Power limit", "", DEVICES)
    walk.fill("Battery budget", "", DEVICES)
    walk.click("Apply", f"{DEVICES}.power")
    walk.until(f"not {DEVICES}.power.use.isEnabled()")
    wait_for(lambda: not any(walk.manage("power")["limits"].values()), 60, "no limits on the server")


def test_the_context_is_slid_and_the_model_is_loaded_with_it(walk):
    walk.new_chat()
    walk.click("Model", "chat.bar")
    walk.click("Load settings: Spark (demo)")
    walk.until("app.activeModalWidget() is not None and 'Runs on' in says()")
    walk.until("'1,024 tokens' in says() or '1024 tokens' in says()")
    walk.picture("load-settings")
    walk.click("Context length")
    walk.key("Home")
    walk.until("'512 tokens' in says()")
    walk.click("Save and load")
    walk.until("app.activeModalWidget() is None")
    wait_for(lambda: '"n_ctx": 512' in json.dumps(walk.manage("loaded")), 60, "the model with that context")
    assert '"n_ctx": 512' in (walk.home / "config" / "model_settings.json").read_text().replace('":512', '": 512')

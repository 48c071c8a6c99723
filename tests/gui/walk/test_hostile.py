"""Faults around the window: a full disk, no network, a killed server, a deleted model, odd names."""

import contextlib
import os
import signal
import threading
import time

import psutil
import pytest

from tests.faults.test_disk_full import can_mount
from tests.gui.walk.walker import ROOT, has_namespaces

pytestmark = pytest.mark.timeout(1500)  # servers end and start, on a busy computer
SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"
LIBRARY = "window.page('library')"
LAST = "chat.controller.tree.path()[-1]"
STORY = "Write a long story about the keeper of a lighthouse."
SERVER_BACK = "'It is running again' in window.banner.text and desktop.services.models.reachable"


def write(walk, text):
    """Type a question and send it."""
    walk.click("Message", "chat")
    walk.type(text)
    walk.until(f"chat.composer.text == {text!r}")
    walk.key("Return")


def fill(ballast):
    """Fill the disk of this file."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"0" * size)


def runners(walk):
    """The runner processes of this window's server."""
    found = []
    for child in psutil.Process(walk.server()["pid"]).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that ended meanwhile
            found += [child] if "engine.runner.main" in " ".join(child.cmdline()) else []
    return found


def kill_server(walk, stopped=()):
    """End the server like a crash, and its paused runners, which cannot notice it."""
    os.kill(walk.server()["pid"], signal.SIGKILL)
    for runner in stopped:
        with contextlib.suppress(psutil.Error):
            runner.kill()


def tried_again(walk, question):
    """The server restarts automatically, and the interrupted answer is generated when requested."""
    walk.until("not chat.controller.busy")
    walk.until(SERVER_BACK)
    walk.picture("server-back")
    assert walk.ask("chat.controller.tree.path()[-2].content") == question, "the question stays"
    assert walk.ask(f"{LAST}.status") == "error"
    walk.click("Try again", "chat.transcript")
    walk.until(f"not chat.controller.busy and {LAST}.status == 'complete'")
    walk.say("What is Tessera?")
    assert walk.ask(f"{LAST}.status") == "complete"


@pytest.mark.skipif(not can_mount(), reason="needs unshare and user namespaces (Linux)")
def test_a_full_disk_loses_no_message_and_says_what_is_full(open_window, tmp_path):
    walk = open_window(disk_mib=64)
    walk.say("What is Tessera?")
    notes = tmp_path / "notes.txt"
    notes.write_text("The keeper of the lighthouse is Berta Quill. " * 4000)
    ballast = walk.disk / "ballast"
    fill(ballast)
    walk.attach(notes)
    write(walk, "Who keeps it?")
    walk.until("chat.banner.isVisible() and 'could not be saved' in chat.banner.text")
    walk.picture("disk-full")
    assert walk.ask("chat.composer.text") == "Who keeps it?", "nothing that was written is lost"
    assert walk.ask("[item.name for item in chat.composer.attachments]") == ["notes.txt"]
    assert "full" in walk.ask("chat.banner.text")
    assert walk.ask("len(chat.controller.tree)") == 2
    ballast.unlink()
    walk.click("Remove notes.txt", "chat.composer")
    walk.click("Message", "chat")
    walk.key("Return")
    walk.until("len(chat.controller.tree) == 4 and not chat.controller.busy")
    assert walk.ask(f"{LAST}.status") == "complete"
    walk.close()


def test_a_model_that_is_deleted_while_it_is_loaded_goes_on_and_says_so(open_window, tmp_path_factory):
    home = tmp_path_factory.mktemp("walk")
    (home / "models").mkdir()
    file = home / "models" / "wanderer.gguf"
    file.write_bytes(SPARK.read_bytes().replace(b"Spark (demo)", b"Quark (mini)"))
    walk = open_window(home=home)
    walk.until("any(c.id == 'wanderer' for c in desktop.services.models.choices)")
    walk.until("chat.controller.conversation.model == 'wanderer'")
    walk.say("What is Tessera?")
    assert walk.ask(f"{LAST}.status") == "complete"
    file.unlink()
    walk.say("What is quantization?")
    walk.picture("model-deleted")
    assert walk.ask(f"{LAST}.status") == "complete", "what is in memory goes on answering"
    walk.until("'wanderer (missing)' in says(chat.bar)")
    assert walk.loaded() == ["wanderer"]
    walk.go("Devices")
    walk.click("Eject: wanderer", "window.page('devices')")
    walk.until("not spot('Eject: wanderer')")
    walk.picture("ejected")
    assert walk.loaded() == []
    walk.close()


def test_names_and_texts_from_right_to_left_stay_readable(walk, tmp_path):
    walk.new_chat()
    trick = tmp_path / "invoice\u202etxt.exe"
    trick.write_text("ordinary text")
    hebrew = tmp_path / "שלום עולם.txt"
    hebrew.write_text("שלום")
    walk.ask(f"chat.composer.attach([{str(trick)!r}, {str(hebrew)!r}])")  # no keyboard has these characters
    walk.until("len(chat.composer.attachments) == 2")
    walk.until("'שלום עולם.txt' in says(chat.composer)")
    assert "\u202e" not in walk.ask("says(chat.composer)"), "no name turns its own end round"
    walk.picture("right-to-left")


def test_a_server_that_is_killed_in_an_answer_loses_no_word_of_it(open_window):
    walk = open_window()
    walk.say("What is Tessera?")
    stopped = runners(walk)
    for runner in stopped:
        runner.suspend()  # the answer comes in steps, so that its middle is not missed
    write(walk, STORY)
    walk.until("chat.controller.busy")
    said = "len(chat.controller.partial.content if chat.controller.partial else '')"
    started = time.monotonic()
    while True:
        if walk.ask(said) >= 20:
            time.sleep(0.2)  # what the paused runner sent before has arrived
            if walk.ask("chat.controller.busy"):
                break
        assert time.monotonic() - started < 300, "no answer in steps"
        if not walk.ask("chat.controller.busy"):  # it was a short one, complete after one step
            write(walk, STORY)
            walk.until("chat.controller.busy")
        for runner in stopped:
            runner.resume()
        time.sleep(0.002)
        for runner in stopped:
            runner.suspend()
    length = walk.ask(said)
    kill_server(walk, stopped)
    walk.until("not chat.controller.busy")
    assert len(walk.ask(f"{LAST}.content")) >= length, "what had arrived stays"
    tried_again(walk, STORY)
    walk.close()


def test_a_server_that_is_killed_while_it_loads_a_model_starts_again(open_window):
    walk = open_window()
    walk.eject()
    stopped, ended = [], threading.Event()

    def suspend():
        while not ended.wait(0.005):
            for runner in runners(walk):
                if runner not in stopped:
                    runner.suspend()
                    stopped.append(runner)

    hand = threading.Thread(target=suspend)
    hand.start()
    try:
        write(walk, STORY)
        walk.until("'Starting the model' in says(chat.transcript)")
        walk.picture("killed-while-loading")
    finally:
        ended.set()
        hand.join()
    kill_server(walk, stopped)
    tried_again(walk, STORY)
    walk.close()


def test_a_server_that_is_killed_in_a_download_goes_on_where_it_was(open_window, hub):
    walk = open_window()
    raw = SPARK.read_bytes()
    walk.go("Library")
    walk.click("Find models")
    walk.fill("Search models", "Other", LIBRARY)
    walk.key("Return")
    walk.until(f"'Other-GGUF' in says({LIBRARY})")
    walk.click("What fits?", LIBRARY)
    walk.until(f"'Q8_0' in says({LIBRARY})")
    hub.faults.bytes_per_s = 1_000_000
    try:
        walk.click("Download", LIBRARY)
        walk.ends("pull", 0, "running")
        walk.until("[j for j in desktop.jobs.by_id.values()][0].progress.done > 1_000_000")
        kill_server(walk)
        walk.until(SERVER_BACK)
    finally:
        hub.faults.bytes_per_s = 0
    walk.until("[j.state for j in desktop.jobs.by_id.values()][-1] in ('paused', 'failed', 'done')")
    walk.picture("killed-in-a-download")
    if walk.ask("[j.state for j in desktop.jobs.by_id.values()][-1]") != "done":
        walk.click("Resume", LIBRARY)
        walk.until("[j.state for j in desktop.jobs.by_id.values()][-1] == 'done'")
    (file,) = (walk.home / "models").rglob("other*.gguf")
    assert file.read_bytes() == raw
    walk.close()


@pytest.mark.skipif(not has_namespaces(), reason="needs unshare and user namespaces (Linux)")
def test_without_a_network_each_page_says_once_what_it_cannot_reach(open_window):
    walk = open_window(network=False)
    walk.until("spot('Download', chat._welcome)")
    walk.click("Check with Hugging Face", "chat._welcome")
    walk.until("'Hugging Face did not answer' in says(chat._welcome)")
    walk.click("Download", "chat._welcome")
    walk.until("any(j.state == 'failed' for j in desktop.jobs.by_id.values())")
    walk.settle()
    walk.picture("no-network-welcome")
    assert walk.ask("says().count('cannot be reached')") == 1, "one cause, said once"
    walk.go("Library")
    walk.click("Find models")
    walk.until(f"'Hugging Face did not answer' in says({LIBRARY})")
    walk.fill("Search models", "Qwen", LIBRARY)
    walk.key("Return")
    walk.until(f"{LIBRARY}.hub.banner.isVisible() and 'Searching' not in says({LIBRARY}.hub)")
    assert "cannot be reached" in walk.ask(f"{LIBRARY}.hub.banner.text")
    walk.find("Try again", f"{LIBRARY}.hub.banner")
    walk.picture("no-network-search")
    walk.go("Settings")
    walk.click("Network", "window.page('settings')")
    walk.click("Check for new versions of Tessera", "window.page('settings')")
    walk.until("'could not be read now' in window.banner.text")
    walk.picture("no-network-update")
    walk.close()
    walk.start()
    walk.until("chat.composer.ready")
    walk.settle()
    walk.picture("no-network-start")
    assert not walk.ask("window.banner.isVisible()"), "an update that cannot be looked up is no news"
    walk.say("What is Tessera?")
    assert walk.ask(f"{LAST}.status") == "complete", "what is here works"
    walk.close()

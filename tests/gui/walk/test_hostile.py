"""What goes wrong around the window: a full disk, a deleted model, odd names."""

import contextlib

import pytest

from tests.faults.test_disk_full import can_mount
from tests.gui.walk.walker import ROOT

pytestmark = pytest.mark.timeout(1500)  # servers end and start, on a crowded computer
SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"
LIBRARY = "window.page('library')"
LAST = "chat.controller.tree.path()[-1]"
STORY = "Write a long story, at least two thousand words, about the keeper of a lighthouse."
PATIENCE_S = 600.0


def write(walk, text):
    """A question by hand, sent."""
    walk.click("Message", "chat")
    walk.type(text)
    walk.until(f"chat.composer.text == {text!r}")
    walk.key("Return")


def fill(ballast):
    """Leave no room on the disk of this file."""
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"0" * size)


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
    walk.close()


def test_names_and_texts_from_right_to_left_stay_readable(walk, tmp_path):
    walk.new_chat()
    trick = tmp_path / "invoice\u202etxt.exe"
    trick.write_text("ordinary text")
    hebrew = tmp_path / "שלום עולם.txt"
    hebrew.write_text("שלום")
    walk.ask(f"chat.composer.attach([{str(trick)!r}, {str(hebrew)!r}])")  # no keyboard has these signs
    walk.until("len(chat.composer.attachments) == 2")
    walk.until("'שלום עולם.txt' in says(chat.composer)")
    assert "\u202e" not in walk.ask("says(chat.composer)"), "no name turns its own end round"
    walk.picture("right-to-left")

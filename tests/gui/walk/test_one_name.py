"""One model has one name and one file one size, on every page, before and after a restart."""

import re
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.gui.walk.walker import ROOT

LIBRARY, FIT = "window.page('library')", "window.page('fit')"
SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"
SIZE = re.compile(r"([\d.,]+) ([KMG]i?B)\b")
BITS = re.compile(r"([\d.]+) bits")


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def names_in_chat(walk):
    """What the chat calls the model: above it, in its answers, and in the list of models."""
    walk.until("'Spark (demo)' in says(chat.transcript)")
    assert walk.ask("chat.bar.models.currentText()") == "Spark (demo)"
    walk.click("Model", "chat.bar")
    walk.until("app.focusWidget() is not None and app.focusWidget().accessibleName() == 'Search models'")
    walk.find("Load settings: Spark (demo)")
    walk.key("Escape")
    walk.dialog_closed()
    return walk.ask("[label for label in says().split(' | ') if label.strip().lower() == 'spark']")


def test_a_model_keeps_its_name_after_a_restart(walk):
    walk.say("What is Tessera?")
    assert names_in_chat(walk) == []
    walk.close()
    walk.start()
    walk.until("chat.composer.ready and len(chat.controller.tree) == 2")
    assert names_in_chat(walk) == []
    walk.go("Library")
    walk.until(f"'Spark (demo)' in says({LIBRARY})")
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    assert walk.ask(f"{FIT}.model.currentText()").startswith("Spark (demo)")


def shown_size(words):
    """Number and unit of the first size in a text."""
    found = SIZE.search(words)
    assert found, words
    return found.groups()


def test_a_file_made_here_has_one_size_and_as_many_bits_on_every_page(walk):
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    walk.click("Balanced", FIT)
    walk.click("Instant")
    walk.until(f"{FIT}.tier.currentData() == 'instant' and {FIT}.start.isEnabled()")
    walk.until(f"'bits' in {FIT}.size_words.text()")
    promised = walk.ask(f"{FIT}.size_words.text()")
    walk.click("Make it fit", f"{FIT}.start")
    walk.until(f"'Done' in {FIT}.banner.text", 600)
    made = next((walk.home / "models").rglob("*.gguf"))
    true = made.stat().st_size
    told = {"promised": promised, "report": walk.ask(f"says({FIT}._report.itemAt(0).widget())")}
    walk.go("Library")
    card = f"next(c for c in {LIBRARY}.cards if c.model.origin.kind == 'built')"
    walk.until(f"any(c.model.origin.kind == 'built' for c in {LIBRARY}.cards)")
    walk.until(f"' bits' in says({card}) and 'iB' in says({card})")
    told["card"] = walk.ask(f"says({card})")
    name = walk.ask(f"{card}.model.name")
    walk.new_chat()
    walk.click("Model", "chat.bar")
    row = "[t for t in says().split(' | ') if ' MiB' in t or ' MB' in t]"
    walk.until(f"len({row}) >= 2 and {name!r} in says()")
    sizes = [shown_size(words) for words in walk.ask(row)]
    walk.key("Escape")
    assert {unit for _, unit in sizes} <= {"KiB", "MiB"}, "binary units everywhere"
    for words in told.values():
        number, unit = shown_size(words)
        assert unit == "MiB", told
        assert abs(float(number) - true / 2**20) < 0.1, (told, true)
    assert any(abs(float(number) - true / 2**20) < 0.1 for number, _ in sizes), (sizes, true)
    bits = {key: float(BITS.search(words).group(1)) for key, words in told.items() if BITS.search(words)}
    assert {"promised", "card"} <= set(bits), told
    assert abs(bits["promised"] - bits["card"]) < 0.02, told


def test_a_model_whose_drive_comes_back_is_here_again_at_once(walk):
    """Linked from a place where drives are mounted; without it the drive is away."""
    try:
        drive = Path(tempfile.mkdtemp(prefix="tessera-drive-", dir="/mnt"))
    except OSError:
        pytest.skip("nothing can be written where drives are mounted")
    try:
        file = drive / "voyager.gguf"
        shutil.copyfile(SPARK, file)
        walk.go("Library")
        walk.click("Add a file or folder…", LIBRARY)
        walk.click("A GGUF file…")
        walk.choose_file(file)
        walk.click("Use it where it is", LIBRARY)
        walk.until(f"any('voyager' in c.model.id for c in {LIBRARY}.cards)")
        card = f"next(c for c in {LIBRARY}.cards if 'voyager' in c.model.id)"
        away = drive / "voyager.away"
        file.rename(away)
        walk.until(f"'its drive is not connected' in says({card})")
        walk.picture("drive-away")
        away.rename(file)
        walk.until(f"'its drive is not connected' not in says({card}) and {card}.model.state == 'online'")
        walk.click(walk.ask(f"'Chat with ' + {card}.model.name"), LIBRARY)
        walk.until("chat.isVisible() and 'voyager' in chat.controller.conversation.model")
        walk.say("What is Tessera?")
        assert walk.ask("chat.controller.tree.path()[-1].status") == "complete"
    finally:
        shutil.rmtree(drive)

"""One model has one name on every page, before and after a restart, and while its drive is away."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.gui.walk.walker import ROOT

LIBRARY, FIT = "window.page('library')", "window.page('fit')"
SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def names_in_chat(walk):
    """The model's name in the chat: above it, in its answers, and in the list of models."""
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


def test_a_model_whose_drive_comes_back_is_here_again_at_once(walk):
    """Linked from a path where drives are mounted; without it the drive is disconnected."""
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
        walk.click("Use it in its current folder", LIBRARY)
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

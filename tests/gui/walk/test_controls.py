"""Controls of the pages, pressed one by one, each with the expected state of the server or the disk."""

import shutil
import urllib.error
import urllib.request

import pytest

from tests.gui.walk.walker import ROOT
from tests.support.servers import wait_for

SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"
LIBRARY, SERVER, SETTINGS = "window.page('library')", "window.page('server')", "window.page('settings')"
DOCUMENTS, DEVICES = "window.page('documents')", "window.page('devices')"
LAST = "chat.controller.tree.path()[-1]"
CLIPBOARD = "app.clipboard().text()"


@pytest.fixture(scope="module")
def walk(open_window, tmp_path_factory):
    """A library with a model that may be renamed and removed."""
    home = tmp_path_factory.mktemp("walk")
    (home / "models").mkdir()
    shutil.copyfile(SPARK, home / "models" / "wanderer.gguf")
    return open_window(home=home)


def status(walk, key):
    """The status that a program with this key gets; 0: no key."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    asked = urllib.request.Request(f"{walk.server()['url']}/v1/models", headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:  # it holds the answer
            return error.code


def test_an_answer_is_copied_asked_again_and_continued(walk):
    walk.go("Chat")
    walk.say("What is Tessera?")
    answer = walk.ask(f"{LAST}.content")
    item = "chat.transcript.item(chat.controller.tree.leaf_id)"
    walk.click("Copy", item)
    walk.until(f"{CLIPBOARD} == {answer!r}")
    first = walk.ask(f"{LAST}.id")
    walk.click("Answer again", item)
    walk.until(f"{LAST}.id != {first} and not chat.controller.busy")
    walk.until(f"'2/2' in says({item})")
    walk.click("Earlier version", item)
    walk.until(f"{LAST}.id == {first} and '1/2' in says({item})")
    walk.click("Later version", item)
    walk.until(f"{LAST}.id != {first}")
    walk.click("Continue this answer", item)
    walk.until(f"not chat.controller.busy and {LAST}.status == 'complete'")
    assert walk.ask("len(chat.controller.tree)") == 3


def test_a_model_is_renamed_looked_at_removed_and_brought_back(walk):
    walk.go("Library")
    walk.until(f"any(c.model.id == 'wanderer' for c in {LIBRARY}.cards)")
    walk.click("More about wanderer", LIBRARY)
    walk.click("Rename…")
    walk.until("app.activeModalWidget() is not None")
    walk.key("ctrl+a")
    walk.type("Traveller")
    walk.until("app.focusWidget().text() == 'Traveller'")
    walk.key("Return")
    walk.until(f"'Traveller' in says({LIBRARY})")
    walk.until("any(c.title == 'Traveller' for c in desktop.services.models.choices)")
    walk.click("More about Traveller", LIBRARY)
    walk.click("Details")
    walk.until("app.activeModalWidget() is not None and 'wanderer.gguf' in says()")
    walk.settle()
    walk.picture("details")
    assert walk.cuts() == []
    walk.click("Close")
    walk.dialog_closed()
    file = walk.home / "models" / "wanderer.gguf"
    walk.click("More about Traveller", LIBRARY)
    walk.click("Remove…")
    walk.click("Remove", f"{LIBRARY}.banner")
    walk.until(f"'was removed' in {LIBRARY}.banner.text and 'Traveller' not in says({LIBRARY}._here)")
    wait_for(lambda: not file.exists(), 60, "its file in the trash")
    walk.click("Undo", f"{LIBRARY}.banner")
    walk.until(f"'Traveller' in says({LIBRARY}._here)")
    wait_for(file.exists, 60, "its file")
    assert file.read_bytes() == SPARK.read_bytes()


def test_a_folder_of_documents_is_read_asked_in_a_chat_and_forgotten(walk, tmp_path):
    folder = tmp_path / "Lights"
    folder.mkdir()
    (folder / "skerry.md").write_text("# Skerry\n\nThe keeper of the lighthouse of Skerry is Berta Quill.\n")
    walk.go("Documents")
    walk.click("Add a folder…", f"{DOCUMENTS}.empty")
    walk.choose_file(folder)
    walk.until(f"'1 document, 1 page' in says({DOCUMENTS})", 120)
    walk.picture("documents")
    walk.click("Ask about Lights in a chat", DOCUMENTS)
    walk.until("chat.isVisible() and 'Answers from Lights' in says(chat.composer)")
    walk.say("Who keeps the lighthouse of Skerry?")
    walk.until("'skerry.md' in says(chat.transcript)")
    walk.click("[1] skerry.md, Skerry", "chat.transcript")
    walk.until("app.activeModalWidget() is not None and 'Berta Quill' in app.activeModalWidget().passage")
    walk.key("Escape")
    walk.dialog_closed()
    walk.click("Answer without these documents", "chat")
    walk.until("'collection' not in chat.controller.conversation.sampling")
    walk.go("Documents")
    walk.click("Remove Lights", DOCUMENTS)
    walk.until(f"{DOCUMENTS}.empty.isVisible()")
    walk.click("Undo", f"{DOCUMENTS}.banner")
    walk.until(f"'1 document, 1 page' in says({DOCUMENTS})")
    walk.click("Remove Lights", DOCUMENTS)
    walk.until(f"{DOCUMENTS}.empty.isVisible()")
    assert (folder / "skerry.md").exists(), "files stay where they are"


def test_a_key_is_made_for_a_program_and_revoked(walk):
    walk.go("Server")
    assert status(walk, "") == 200, "no key is needed before there is one"
    walk.click("Name of the new key", SERVER)
    walk.type("editor")
    walk.click("Create a key", SERVER)
    walk.until(f"{SERVER}.keys.key.isVisible() and {SERVER}.keys.key.text()")
    key = walk.ask(f"{SERVER}.keys.key.text()")
    walk.click("Copy the key", SERVER)
    walk.until(f"{CLIPBOARD} == {key!r}")
    wait_for(lambda: (status(walk, key), status(walk, "")) == (200, 401), 60, "the rule of the first key")
    walk.click("Revoke editor", SERVER)
    walk.until("not spot('Revoke editor', window)")
    wait_for(lambda: status(walk, key) != 200 or status(walk, "") == 200, 60, "the end of the rule")
    walk.click("Copy the address", SERVER)
    walk.until(f"{CLIPBOARD} == {SERVER}.address.text()")


def test_a_setting_is_kept_on_the_disk_and_obeyed_at_once(walk):
    walk.go("Settings")
    walk.click("Theme", SETTINGS)
    walk.until("app.activePopupWidget() is not None")
    walk.key("End", "Return")
    walk.until("desktop.services.theme.tokens.dark")
    kept = walk.home / "config" / "settings.toml"
    walk.until(f"'dark' in __import__('pathlib').Path({str(kept)!r}).read_text()")
    walk.click("Search settings", SETTINGS)
    walk.type("tray")
    walk.until(f"'Tray icon' in says({SETTINGS}) and 'Text size' not in says({SETTINGS})")
    walk.key("ctrl+a", "BackSpace")
    walk.until(f"'Text size' in says({SETTINGS})")


def test_a_model_is_pinned_to_a_device(walk):
    walk.new_chat()
    walk.say("What is Tessera?")
    walk.go("Devices")
    walk.click("Refresh", DEVICES)
    walk.until("any(c.loaded for c in desktop.services.models.choices)")
    model = walk.ask("next(c.id for c in desktop.services.models.choices if c.loaded)")
    walk.click(f"Pin to this device: {model}", DEVICES)
    walk.find(f"Let Tessera choose: {model}", DEVICES)
    walk.picture("pinned")
    walk.click(f"Let Tessera choose: {model}", DEVICES)
    walk.find(f"Pin to this device: {model}", DEVICES)

"""What is seldom pressed: leaving dialogs, choices of Make it fit, a file dropped again, a folder read anew."""

import pytest

pytestmark = pytest.mark.timeout(400)  # many dialogs, on a crowded computer
CONNECT, FIT, LIBRARY = "window.page('connect')", "window.page('fit')", "window.page('library')"
DOCUMENTS = "window.page('documents')"


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def closed(walk):
    walk.until("app.activeModalWidget() is None and window.isActiveWindow()")


def test_dialogs_are_left_without_any_change(walk, tmp_path):
    walk.click("Tools", "chat.bar")
    walk.click("Add tools…", "chat")
    walk.fill("Name", "never")
    walk.click("Cancel")
    closed(walk)
    assert not (walk.home / "config" / "mcp.json").exists()
    walk.click("Tools", "chat.bar")
    notes = tmp_path / "notes.txt"
    notes.write_text("The keeper is Berta Quill.")
    walk.attach(notes)
    walk.click("Remove notes.txt", "chat.composer")
    walk.until("'notes.txt' not in says(chat.composer)")
    walk.say("What is Tessera?")
    walk.click("Edit and ask again", "chat")
    walk.until("spot('Edit your message', chat.transcript)")
    walk.type("Something else")
    walk.click("Cancel", "chat.transcript")
    walk.until("not spot('Edit your message', chat.transcript)")
    assert walk.ask("[m.content for m in chat.controller.tree.path()][0]") == "What is Tessera?"
    walk.click("More", "chat.sidebar")
    walk.click("New folder…")
    walk.until("app.activeModalWidget() is not None and 'Name:' in says()")
    walk.type("Lights")
    walk.key("Return")
    closed(walk)
    walk.click("Lights", "chat.sidebar.tree", button=3)
    walk.click("Project: instructions, folder, tools…")
    walk.fill("Name", "Harbours")
    walk.click("Cancel")
    closed(walk)
    walk.find("Lights", "chat.sidebar.tree")
    walk.key("F1")
    walk.until("app.activeModalWidget() is not None and 'Ctrl+K' in says()")
    walk.click("Close")
    closed(walk)


def test_make_it_fit_takes_every_wish(walk):
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    walk.choose("Model", walk.ask(f"{FIT}.model.currentText()"), FIT)
    walk.choose("How thorough", "Instant", FIT)
    walk.until(f"{FIT}.tier.currentData() == 'instant'")
    walk.choose("What to aim for", walk.ask(f"{FIT}.aim.findChildren(type({FIT}.tier))[0].itemText(1)"), FIT)
    walk.until(f"{FIT}.aim.is_context and not {FIT}.slider.isVisible()")
    walk.click("How the context is stored", FIT)
    walk.until("app.activePopupWidget() is not None")
    walk.key("End", "Return")
    walk.click("Context in tokens", FIT)
    walk.until("app.activePopupWidget() is not None")
    walk.key("Home", "Return")
    walk.until(f"{FIT}.start.isEnabled() or {FIT}.banner.text")
    walk.picture("aim")


def test_a_model_for_the_editor_is_chosen(walk):
    walk.go("Connect")
    walk.choose("Model", "Spark (demo)", CONNECT)
    walk.click("Connect aider", CONNECT)
    walk.until(f"'openai/spark' in {CONNECT}.shown.toPlainText()")
    walk.click("Cancel", f"{CONNECT}.review")


def test_a_folder_of_documents_is_read_again(walk, tmp_path):
    folder = tmp_path / "Lights"
    folder.mkdir()
    (folder / "skerry.md").write_text("# Skerry\n\nThe keeper of Skerry is Berta Quill.\n")
    walk.go("Documents")
    walk.click("Add a folder…", f"{DOCUMENTS}.empty")
    walk.choose_file(folder)
    walk.until(f"'1 document, 1 page' in says({DOCUMENTS})", 120)
    (folder / "vore.md").write_text("# Vore\n\nThe keeper of Vore is Tom Hale.\n")
    walk.click("Read Lights again", DOCUMENTS)
    walk.until(f"'2 documents, 2 pages' in says({DOCUMENTS})", 120)

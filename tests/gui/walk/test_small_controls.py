"""Rarely used controls: leaving dialogs, choices of Make it fit, a reloaded folder, scans, a first download."""

import pytest

from engine.library.recommended_models import starter_repo, starters
from quantize.convert.folder import ConvertRequest, convert
from tests.gui.walk.walker import ROOT
from tests.support.documents_made import pdf
from tests.support.models.bert_shape import write_bert
from tests.support.models.small_bert import write_bert_folder
from tests.support.servers import wait_for

pytestmark = pytest.mark.timeout(400)  # many dialogs, on a busy computer
CONNECT, FIT, LIBRARY = "window.page('connect')", "window.page('fit')", "window.page('library')"
DOCUMENTS = "window.page('documents')"


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def test_dialogs_are_left_without_any_change(walk, tmp_path):
    walk.click("Tools", "chat.bar")
    walk.until("'has not been measured' in says(chat)")  # the part above the button appears slightly later
    walk.click("Add tools…", "chat")
    walk.fill("Name", "never")
    walk.click("Cancel")
    walk.dialog_closed()
    assert not (walk.home / "config" / "mcp.json").exists()
    walk.click("Tools", "chat.bar")
    notes = tmp_path / "notes.txt"
    notes.write_text("The keeper is Berta Quill.")
    walk.attach(notes)
    walk.click("Remove notes.txt", "chat.composer")
    walk.until("'notes.txt' not in says(chat.composer)")
    letter = tmp_path / "letter.doc"
    letter.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600)
    walk.click("Attach files", "chat")
    walk.choose_file(letter)
    walk.until("'save it as .docx' in says(chat)")
    walk.say("What is Tessera?")
    walk.click("Edit and ask again", "chat")
    walk.until("spot('Edit your message', chat.transcript)")
    walk.type("Something else")
    walk.until("'Something else' in written()")
    walk.click("Cancel", "chat.transcript")
    walk.until("not spot('Edit your message', chat.transcript)")
    assert walk.ask("[m.content for m in chat.controller.tree.path()][0]") == "What is Tessera?"
    walk.click("More", "chat.sidebar")
    walk.click("New folder")
    walk.until("'Name' in words_of(app.focusWidget())")
    walk.key("ctrl+a")
    walk.type("Lights")
    walk.until("written() == 'Lights'")
    walk.key("Return")
    walk.click("Lights", "chat.sidebar.tree", button=3)
    walk.click("Project: instructions, folder, tools…")
    walk.fill("Name", "Harbours")
    walk.click("Cancel")
    walk.dialog_closed()
    walk.find("Lights", "chat.sidebar.tree")
    walk.key("F1")
    walk.until("app.activeModalWidget() is not None and 'Ctrl+K' in says()")
    walk.click("Close")
    walk.dialog_closed()


def test_of_many_files_twelve_are_shown_and_all_are_removed(walk, tmp_path):
    walk.new_chat()
    pages = [tmp_path / f"page {number}.txt" for number in range(14)]
    for page in pages:
        page.write_text("One of many.")
    walk.click("Attach files", "chat")
    walk.choose_file(" ".join(f'"{page}"' for page in pages))
    walk.until("'2 more files' in says(chat.composer)")
    walk.picture("many-files")
    walk.click("Remove all files", "chat.composer")
    walk.until("not chat.composer.attachments and 'page' not in says(chat.composer)")


def test_make_it_fit_takes_every_wish(walk):
    walk.go("Make it fit")
    walk.until(f"{FIT}.start.isEnabled()")
    walk.choose("Model", walk.ask(f"{FIT}.model.currentText()"), FIT)
    walk.choose("How thorough", "Instant", FIT)
    walk.until(f"{FIT}.tier.currentData() == 'instant'")
    walk.choose("Target", walk.ask(f"{FIT}.aim.findChildren(type({FIT}.tier))[0].itemText(1)"), FIT)
    walk.until(f"{FIT}.aim.is_context and not {FIT}.slider.isVisible()")
    walk.click("KV cache type", FIT)
    walk.until("app.activePopupWidget() is not None")
    walk.key("End", "Return")
    walk.click("Context length in tokens", FIT)
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
    walk.until(f"'1 document, 1 page' in says({DOCUMENTS})", 400)
    (folder / "vore.md").write_text("# Vore\n\nThe keeper of Vore is Tom Hale.\n")
    walk.click("Read Lights again", DOCUMENTS)
    walk.until(f"'2 documents, 2 pages' in says({DOCUMENTS})", 400)


def test_scans_are_read_too_where_one_wants_it(walk, tmp_path):
    folder = tmp_path / "Letters"
    folder.mkdir()
    pdf(folder / "letter.pdf", [["A letter from the keeper of Skerry."], []], pictures={1})
    walk.go("Documents")
    walk.click("Add a folder…", DOCUMENTS)
    walk.choose_file(folder)
    walk.until(f"'Not read: ' in says({DOCUMENTS})", 400)
    walk.picture("scans")
    walk.click("Use OCR", DOCUMENTS)
    walk.until(f"not spot('Use OCR', {DOCUMENTS})", 400)
    (kept,) = [each for each in walk.manage("collections")["collections"] if each["name"] == "Letters"]
    wait_for(lambda: walk.manage(f"collections/{kept['id']}").get("ocr"), 60, "what the server keeps of it")


def test_an_empty_chat_leads_to_models_and_downloads_one(walk, hub):
    walk.new_chat()
    walk.click("All models", "chat._welcome")
    walk.until(f"{LIBRARY}.isVisible()")
    walk.go("Chat")
    raw = (ROOT / "assets" / "models" / "spark-f16.gguf").read_bytes()
    for starter in starters():  # which of them are proposed depends on this computer
        hub.add(starter.repo, {"small-Q4_K_M.gguf": raw})
    try:
        walk.until("'The list is from' in says(chat._welcome)")
        walk.click("Check with Hugging Face", "chat._welcome")
        walk.until("'Checked with Hugging Face.' in says(chat._welcome)")
        walk.picture("welcome")
        walk.click("Download", "chat._welcome")
        walk.ends("pull", 0, "done")
    finally:
        for starter in starters():
            del hub.repos[starter.repo]
    walk.until("len(desktop.services.models.choices) == 2")
    assert [model["origin"]["kind"] for model in walk.manage("models")["models"]].count("hub") == 1


def test_a_model_that_finds_documents_by_meaning_is_downloaded(walk, hub, tmp_path):
    folder = write_bert_folder(tmp_path / "minilm")
    file = tmp_path / "minilm.gguf"
    convert(ConvertRequest(folder=folder, out=file, float_type="F32"), lambda *_: None)
    repo = starter_repo("all-minilm-l6-v2")
    hub.add(repo, {"minilm-F32.gguf": file.read_bytes()})
    number = len(walk.states("pull"))
    try:
        walk.go("Documents")
        walk.click("Download a model for search by meaning", DOCUMENTS)
        walk.ends("pull", number, "done")
    finally:
        del hub.repos[repo]
    walk.go("Documents")
    walk.until(f"not spot('Download a model for search by meaning', {DOCUMENTS})", 400)
    collections = "desktop.services.api.collections()"
    walk.until(f"all(each.embedded for each in {collections})", 400)
    reranker = "Download the reranker jina-reranker-v1-tiny-en"
    walk.until(f"spot({reranker!r}, {DOCUMENTS})", 400)
    repo = starter_repo("jina-reranker-v1-tiny-en")
    hub.add(repo, {"rank-F32.gguf": write_bert(tmp_path / "rank.gguf", rank=True).read_bytes()})
    number = len(walk.states("pull"))
    try:
        walk.click(reranker, DOCUMENTS)
        walk.ends("pull", number, "done")
    finally:
        del hub.repos[repo]
    walk.go("Documents")
    walk.until(f"not spot({reranker!r}, {DOCUMENTS})", 400)

"""A newcomer's actions in the first hour, by real clicks on a real server."""

import os
import signal

import pytest

from engine.library.recommended_models import starters
from tests.gui.walk.walker import PAGES, ROOT

SETTINGS, DOCUMENTS = "window.page('settings')", "window.page('documents')"
LIBRARY = "window.page('library')"
CONNECT, FIT = "window.page('connect')", "window.page('fit')"
ASKED = "[m.content for m in chat.controller.tree.path() if m.role == 'user']"


@pytest.fixture
def offered(hub):
    """Every recommended model can be downloaded: a small one that is not named a toy."""
    raw = (ROOT / "assets" / "models" / "spark-f16.gguf").read_bytes()
    for starter in starters():  # which of them are offered depends on this computer
        hub.add(starter.repo, {"quark-F16.gguf": raw.replace(b"Spark (demo)", b"Quark (mini)")})
    yield
    for starter in starters():
        del hub.repos[starter.repo]


def test_all_pages_recommend_one_model_and_open_no_second_window(walk, offered):
    """Pages are created when first shown; a widget shown before it has a parent becomes a window."""
    walk.until("spot('Download', chat._welcome)")
    assert walk.ask("windows_opened()") == []
    for page in ("Documents", "Code", "Library", *PAGES, "Settings"):
        walk.go(page)
        walk.settle()
    assert walk.ask("windows_opened()") == [], "each page opens in the one window"
    walk.go("Library")
    walk.click("Find models", LIBRARY)
    walk.until(f"'Recommended' in says({LIBRARY}.hub)")
    listed = walk.ask(f"says({LIBRARY}.hub)").split(" | ")
    walk.click("On this computer", LIBRARY)
    walk.new_chat()
    walk.until("'Recommended' in says(chat._welcome)")
    welcome = walk.ask("says(chat._welcome)").split(" | ")
    assert listed.count("Recommended") == welcome.count("Recommended") == 1
    assert listed[listed.index("Recommended") - 1] == welcome[welcome.index("Recommended") - 1]


def test_the_first_hour_takes_twelve_clicks(walk, offered, tmp_path):
    folder = tmp_path / "Lights"
    folder.mkdir()
    (folder / "skerry.md").write_text("# Skerry\n\nThe keeper of the lighthouse of Skerry is Berta Quill.\n")
    clicks = []

    def click(*what, **where):
        clicks.append(what[0])
        walk.click(*what, **where)

    walk.until("spot('Download', chat._welcome)")
    walk.picture("welcome")
    click("Download", "chat._welcome")  # the recommended one comes first
    walk.until("chat.isVisible() and not desktop.services.models.get(chat.controller.conversation.model).demo", 400)
    walk.until("chat.composer.ready")
    click("What is photosynthesis?", "chat._welcome")
    walk.until("len(chat.controller.tree.path()) == 2 and chat.controller.tree.path()[-1].status == 'complete'")
    walk.picture("next-steps")
    click("Add documents", "chat.banner")
    click("Add a folder…", f"{DOCUMENTS}.empty")
    walk.choose_file(folder)
    walk.until(f"'1 document, 1 page' in says({DOCUMENTS})", 120)
    click("Ask about Lights in a chat", DOCUMENTS)
    walk.until("chat.isVisible() and 'Answers from Lights' in says(chat.composer)")
    assert not walk.ask("chat.options.isVisible() or chat.tools.panel.isVisible()"), "the chip says it"
    walk.say("Who keeps the lighthouse of Skerry?")
    walk.until("'skerry.md' in says(chat.transcript)")
    assert not walk.ask("spot('Add documents', chat.banner)"), "offered once"
    click("Server", "window._rail")
    click("Connect", "window._sections")
    click("Connect aider", CONNECT)
    click("Apply", f"{CONNECT}.review")
    walk.until(f"'is connected' in {CONNECT}.banner.text")
    click("Models", "window._rail")
    click("Make it fit", "window._sections")
    walk.until(f"{FIT}.start.isEnabled()")
    walk.picture("fit")
    click("Make it fit", f"{FIT}._choices")
    walk.until("any(j.kind.value == 'quantize' and not j.ended for j in desktop.jobs.by_id.values())")
    assert len(clicks) == 12, clicks
    walk.click("Cancel", FIT)  # test_jobs waits for the end of such a job, which takes minutes
    walk.ends("quantize", 0, "cancelled")


def test_messages_written_during_an_answer_wait_visibly_and_are_sent_after_it(walk):
    walk.new_chat()
    server = walk.server()["pid"]
    os.kill(server, signal.SIGSTOP)  # the first answer lasts as long as this test needs
    try:
        for text in ("What is quantization?", "What is Tesera?", "Not this one"):
            walk.click("Message", "chat")
            walk.type(text)
            walk.until(f"chat.composer.text == {text!r}")
            walk.key("Return")
            walk.until(f"spot({text!r}, chat.composer) or chat.controller.busy")
        walk.until("spot('Not this one', chat.composer)")
        walk.picture("waiting")
        walk.click("Discard the waiting message", "chat", nth=1)
        walk.until("not spot('Not this one', chat.composer)")
        walk.click("Edit the waiting message", "chat")
        walk.until("chat.composer.text == 'What is Tesera?'")
        walk.fill("Message", "What is Tessera?", "chat")
        walk.key("Return")
        walk.until("spot('What is Tessera?', chat.composer)")
    finally:
        os.kill(server, signal.SIGCONT)
    walk.until(f"{ASKED} == ['What is quantization?', 'What is Tessera?'] and not chat.controller.busy")
    assert walk.ask("chat.controller.tree.path()[-1].status") == "complete"


def test_a_panel_is_closed_where_it_was_opened(walk):
    walk.go("Chat")
    for name, panel in (("System prompt and sampling", "chat.options"), ("Tools", "chat.tools.panel")):
        at = walk.find(name, "chat.bar")
        for opened in (True, False):
            walk.click_at(*at)
            walk.until(f"{panel}.isVisible() == {opened}")
    assert not walk.ask("chat.options.isVisible()")


def test_a_long_text_is_pasted_as_a_file(walk):
    walk.go("Chat")
    walk.ask("app.clipboard().setText('Tessera writes. ' * 700)")
    walk.click("Message", "chat")
    walk.key("ctrl+v")
    walk.until("'pasted text 1.txt' in says(chat.composer) and not chat.composer.text")
    walk.click("Remove pasted text 1.txt", "chat")
    walk.until("'pasted text' not in says(chat.composer)")


def test_only_real_languages_are_offered_and_a_restart_is(walk):
    walk.go("Settings")
    walk.click("Appearance", SETTINGS)
    walk.open_list("Language", SETTINGS)
    walk.until("spot('Deutsch')")
    assert not walk.ask("spot('Pseudo')")
    walk.click("Deutsch")
    walk.until(f"spot('Restart now', {SETTINGS})")
    walk.choose("Language", "System", SETTINGS)
    walk.until(f"not spot('Restart now', {SETTINGS})")
    walk.click("Chat", SETTINGS)
    walk.fill("Tools for new chats", "tessera:calculator", SETTINGS)
    walk.key("Tab")
    walk.until("desktop.services.settings.now.text('chat.tools') == 'tessera:calculator'")
    walk.new_chat()
    walk.until("spot('Tools (1)', chat.composer)")


def test_models_are_filtered_and_ordered(walk):
    walk.go("Library")
    walk.choose("Order of the models", "Largest first", LIBRARY)
    walk.fill("Filter the models", "no such model", LIBRARY)
    walk.until(f"{LIBRARY}.cards == []")
    walk.fill("Filter the models", "spark", LIBRARY)
    walk.until(f"[c.model.id for c in {LIBRARY}.cards][:1] == ['spark']")
    walk.picture("library")

"""What a newcomer does in the first hour, by real clicks on a real server."""

import os
import signal

SETTINGS = "window.page('settings')"
ASKED = "[m.content for m in chat.controller.tree.path() if m.role == 'user']"


def test_messages_written_during_an_answer_wait_visibly_and_are_sent_after_it(walk):
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
    for name, panel in (("System prompt and sampling", "chat.options"), ("Tools", "chat.tools.panel")):
        at = walk.find(name, "chat.bar")
        for opened in (True, False):
            walk.click_at(*at)
            walk.until(f"{panel}.isVisible() == {opened}")
    assert not walk.ask("chat.options.isVisible()")


def test_a_long_text_is_pasted_as_a_file(walk):
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

"""Prompts: saved, found with a slash, filled in, sent. Ctrl+K: pages, commands, chats, models. A second start."""

import subprocess
import sys

import psutil
import pytest

from tests.gui.walk.walker import ROOT
from tests.support.servers import wait_for


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def test_a_prompt_is_saved_and_used_with_its_places_filled(walk):
    walk.click("Message", "chat")
    walk.type("What is {{topic}}?")
    walk.until("chat.composer.text == 'What is {{topic}}?'")
    walk.click("Saved prompts (/)", "chat.composer")
    walk.click("Save this text as a prompt…")
    walk.until("app.activeModalWidget() is not None and 'Name:' in says()")
    walk.type("Explain")
    walk.key("Return")
    walk.dialog_closed()
    walk.click("Message", "chat")
    walk.key("ctrl+a", "BackSpace")
    walk.type("/")
    walk.until("app.focusWidget() is not None and app.focusWidget().accessibleName() == 'Search prompts'")
    walk.type("expl")
    walk.until("spot('Explain')")
    walk.picture("prompts")
    walk.key("Return")
    walk.until("app.activeModalWidget() is not None and 'topic' in says()")
    walk.click("Cancel")
    walk.dialog_closed()
    walk.until("chat.composer.text == ''")  # nothing was put in
    walk.click("Saved prompts (/)", "chat.composer")
    walk.click("Explain")
    walk.until("app.activeModalWidget() is not None and 'topic' in says()")
    walk.type("Tessera")
    walk.key("Return")
    walk.until("chat.composer.text == 'What is Tessera?' and window.isActiveWindow()")
    walk.key("Return")
    walk.until("len(chat.controller.tree) == 2 and not chat.controller.busy")
    assert walk.ask("chat.controller.tree.path()[0].content") == "What is Tessera?"


def test_enter_alone_names_a_prompt_by_its_first_words_and_replaces_no_other(walk):
    for number, name in enumerate(("Tell me of the sea", "Tell me of the sea 2"), 1):
        walk.key("ctrl+n")
        walk.click("Message", "chat")
        walk.type("Tell me of the sea")
        walk.until("chat.composer.text == 'Tell me of the sea'")
        walk.click("Saved prompts (/)", "chat.composer")
        walk.click("Save this text as a prompt…")
        walk.until(f"app.activeModalWidget() is not None and app.activeModalWidget().textValue() == {name!r}")
        walk.key("Return")
        walk.dialog_closed()
        walk.click("Saved prompts (/)", "chat.composer")
        # next to "Explain" and "Save what is written"
        walk.until(f"spot({name!r}) and app.activeModalWidget().list.count() == {number + 2}")
        walk.key("Escape")
        walk.dialog_closed()
        walk.key("ctrl+a", "BackSpace")


def test_a_chat_is_archived_from_its_row_and_search_still_finds_it(walk):
    walk.find("What is Tessera?", "chat.sidebar")
    x, y, width, height = walk.ask("spot('What is Tessera?', chat.sidebar)")
    walk.click_at(x + width - 12, y + height // 2)  # the dots under the pointer
    walk.until("app.activePopupWidget() is not None")
    walk.picture("row-menu")
    walk.click("Archive")
    walk.until("spot('Archived', chat.sidebar) and not spot('What is Tessera?', chat.sidebar)")
    walk.click("Search chats", "chat.sidebar")
    walk.type("tessera")
    walk.until("chat.sidebar.hits_model.rowCount() >= 1")
    walk.picture("hits")
    walk.key("ctrl+a", "BackSpace")
    walk.click("Archived", "chat.sidebar")
    walk.until("spot('What is Tessera?', chat.sidebar)")


def test_a_preset_is_a_persona_whose_places_are_asked_for(walk):
    walk.new_chat()
    walk.click("System prompt and sampling", "chat.bar")
    walk.click("System prompt", "chat.options")
    walk.type("You are {{name}}, a keeper of lighthouses.")
    walk.until("chat.controller.conversation.system_prompt == 'You are {{name}}, a keeper of lighthouses.'")
    walk.click("Save as preset…", "chat.options")
    walk.until("app.activeModalWidget() is not None and 'Name:' in says()")
    walk.type("Keeper")
    walk.key("Return")
    walk.until("chat.options.preset.count() == 2 and app.activeModalWidget() is None")
    walk.key("ctrl+n")
    walk.until("chat.controller.conversation.system_prompt == ''")
    walk.click("Preset", "chat.options")
    walk.until("app.activePopupWidget() is not None")
    walk.key("Down", "Return")
    walk.until("app.activeModalWidget() is not None and 'Keeper' in says()")
    walk.type("Berta")
    walk.key("Return")
    walk.until("chat.controller.conversation.system_prompt == 'You are Berta, a keeper of lighthouses.'")
    walk.click("System prompt and sampling", "chat.bar")


def commands(walk):
    walk.until("window.isActiveWindow()")  # again, after the previous list closed
    walk.key("ctrl+k")
    walk.until("app.focusWidget() is not None and app.focusWidget().accessibleName().startswith('Type a command')")


def test_a_page_a_theme_and_a_chat_are_found_by_typing(walk):
    walk.new_chat()
    walk.say("Why do lighthouses shine?")
    number = walk.ask("chat.controller.conversation.id")

    commands(walk)
    walk.type("dashb")
    walk.until("spot('Go to Server: Dashboard') and not spot('New chat')")
    walk.picture("palette")
    walk.key("Return")
    walk.until("window.page('dashboard').isVisible()")

    commands(walk)
    walk.type("dark")
    walk.until("spot('Appearance: Dark')")
    walk.key("Return")
    walk.until("desktop.services.theme.tokens.dark")
    file = walk.home / "config" / "settings.toml"  # written after the window has it
    wait_for(lambda: file.exists() and "dark" in file.read_text(), 60, "the theme in the file")

    walk.key("ctrl+n")
    walk.until("chat.isVisible() and not len(chat.controller.tree)")
    commands(walk)
    walk.type("why do light")
    walk.until("spot('Why do lighthouses shine?')")
    walk.key("Return")
    walk.until(f"chat.controller.conversation.id == {number}")

    commands(walk)
    walk.key("Escape")
    walk.until("app.activeModalWidget() is None")


def command(walk, words):
    """Choose that command by typing its beginning."""
    commands(walk)
    walk.type(words)
    walk.until(f"spot({words!r})")
    walk.key("Return")


def closed(walk):
    walk.key("Escape")
    walk.dialog_closed()


def test_every_command_does_what_its_button_does(walk):
    command(walk, "New chat")
    walk.until("chat.isVisible() and len(chat.controller.tree) == 0")
    command(walk, "New temporary chat")
    walk.until("'Temporary chat. It is not saved' in says(chat)")
    command(walk, "New chat")
    walk.until("'Temporary chat. It is not saved' not in says(chat)")
    walk.say("What is Tessera?")
    command(walk, "Choose a model")
    walk.until("app.focusWidget() is not None and app.focusWidget().accessibleName() == 'Search models'")
    closed(walk)
    command(walk, "Saved prompts")
    walk.until("app.focusWidget() is not None and app.focusWidget().accessibleName() == 'Search prompts'")
    closed(walk)
    command(walk, "System prompt and sampling")
    walk.until("chat.options.isVisible()")
    for words, there in (
        ("Keyboard shortcuts", "'Ctrl+K' in says()"),
        ("About Tessera and its licences", "'Copy version' in says()"),
        ("Export this chat…", "app.activeModalWidget().windowTitle() == 'Export chat'"),
        ("Import chats…", "app.activeModalWidget().windowTitle() == 'Import chats'"),
    ):
        command(walk, words)
        walk.until(f"app.activeModalWidget() is not None and {there}")
        closed(walk)
    command(walk, "Appearance: Light")
    walk.until("not desktop.services.theme.tokens.dark")
    command(walk, "Chat with Spark (demo)")
    walk.until("chat.isVisible() and chat.controller.conversation.model == 'spark'")
    command(walk, "Go to Settings")
    walk.until("window.page('settings').isVisible()")


def test_the_models_are_told_with_size_place_and_more(walk):
    walk.key("ctrl+n")
    walk.click("Model", "chat.bar")
    walk.until("'16.3 MiB' in says() and ' on ' in says()")
    walk.picture("picker")
    walk.click("Get more models…")
    walk.until("window.page('library').isVisible() and window.page('library').tabs.currentIndex() == 1")


def program(walk, *arguments):
    """The program from a terminal, with the folders of that window."""
    return subprocess.run(
        [sys.executable, "-m", "app", *map(str, arguments)],
        cwd=ROOT,
        env={**walk.env, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_a_second_start_brings_its_file_to_the_window_there_is(walk, tmp_path):
    walk.new_chat()
    walk.go("Server")
    notes = tmp_path / "notes.txt"
    notes.write_text("The keeper is Berta Quill.")
    second = program(walk, "window", notes)
    assert second.returncode == 0, second.stderr
    walk.until("chat.isVisible() and 'notes.txt' in says(chat.composer)")
    walk.until("window.isActiveWindow()")

    server = walk.server()
    again = program(walk, "serve", "--port", walk.env["TESSERA_SERVER_PORT"])
    assert again.returncode != 0
    assert walk.env["TESSERA_SERVER_PORT"] in again.stderr
    assert "Traceback" not in again.stderr
    assert psutil.pid_exists(server["pid"])
    assert walk.server() == server, "the one that runs is left alone"
    walk.say("What is Tessera?")
    assert walk.ask("chat.controller.tree.path()[-1].status") == "complete"

"""Ctrl+K: pages, commands, chats and models by typing."""

import pytest

from tests.support.servers import wait_for


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def commands(walk):
    walk.until("window.isActiveWindow()")  # again, after the list before closed
    walk.key("ctrl+k")
    walk.until("app.focusWidget() is not None and app.focusWidget().accessibleName().startswith('Type a command')")


def test_a_page_a_theme_and_a_chat_are_found_by_typing(walk):
    walk.say("What is Tessera?")
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
    file = walk.home / "config" / "settings.toml"  # written after the window knows it
    wait_for(lambda: file.exists() and "dark" in file.read_text(), 60, "the theme in the file")

    walk.key("ctrl+n")
    walk.until("chat.isVisible() and not len(chat.controller.tree)")
    commands(walk)
    walk.type("what is tess")
    walk.until("spot('What is Tessera?')")
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

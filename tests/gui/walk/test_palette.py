"""Ctrl+K: pages, commands, chats and models by typing."""

import pytest


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
    walk.until("desktop.services.look.tokens.dark")
    assert "dark" in (walk.home / "config" / "settings.toml").read_text()

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


def test_the_models_are_told_with_size_place_and_more(walk):
    walk.key("ctrl+n")
    walk.click("Model", "chat.bar")
    walk.until("'16.3 MiB' in says() and ' on ' in says()")
    walk.picture("picker")
    walk.click("Get more models…")
    walk.until("window.page('library').isVisible() and window.page('library').tabs.currentIndex() == 1")

"""Prompts are saved, found with a slash, filled in and sent; chats are archived by the menu under the pointer."""

import pytest


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def test_a_prompt_is_saved_and_used_with_its_places_filled(walk):
    walk.click("Message", "chat")
    walk.type("What is {{topic}}?")
    walk.until("chat.composer.text == 'What is {{topic}}?'")
    walk.click("Saved prompts (/)", "chat.composer")
    walk.click("Save what is written as a prompt…")
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
        walk.click("Save what is written as a prompt…")
        walk.until(f"app.activeModalWidget() is not None and app.activeModalWidget().textValue() == {name!r}")
        walk.key("Return")
        walk.dialog_closed()
        walk.click("Saved prompts (/)", "chat.composer")
        # "Explain" and "Save what is written" beside them
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

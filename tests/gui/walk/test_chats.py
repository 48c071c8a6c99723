"""Keeping chats: edited answers, new chats from an old one, deleting one message or many, options of an answer."""

import json

import pytest

from app.suggestions import FOR_THE_TOY

LAST = "chat.controller.tree.path()[-1]"


@pytest.fixture(scope="module")
def walk(open_window):
    return open_window()


def more(walk, entry, place):
    """An entry of the menu of one message of the chat."""
    walk.click("More", f"chat.transcript.item(chat.controller.tree.path()[{place}].id)")
    walk.click(entry)


def test_what_is_typed_after_a_click_is_for_the_model(walk):
    """The button that begins an answer goes away, and so would the keyboard."""
    walk.new_chat()
    question = FOR_THE_TOY[0].question
    walk.click(question, "chat")
    walk.until("len(chat.controller.tree.path()) > 0")
    walk.type("And then?")
    walk.until("chat.composer.text == 'And then?'")
    walk.key("ctrl+a", "BackSpace")
    walk.until("chat.composer.text == '' and not chat.controller.busy")
    walk.click("Answer again", f"chat.transcript.item({LAST}.id)")
    walk.type("Once more")
    walk.until("chat.composer.text == 'Once more'")
    walk.key("ctrl+a", "BackSpace")
    walk.until("chat.composer.text == '' and not chat.controller.busy")
    walk.click("Copy", f"chat.transcript.item({LAST}.id)")
    walk.until("app.focusWidget() is not chat.composer.editor")
    walk.type("Anywhere")
    walk.until("chat.composer.text == 'Anywhere'")
    walk.key("ctrl+a", "BackSpace")
    walk.until("chat.composer.text == ''")


def test_an_answer_is_edited_a_chat_forked_and_a_message_deleted(walk):
    walk.new_chat()
    walk.say("What is Tessera?")
    walk.say("What is quantization?")
    number = walk.ask("chat.controller.conversation.id")
    more(walk, "Edit this answer", 3)
    walk.until("spot('Edit this answer', chat.transcript)")
    walk.key("ctrl+a")
    walk.type("My own words")
    walk.until("app.focusWidget().toPlainText() == 'My own words'")
    walk.key("ctrl+Return")
    walk.until(f"{LAST}.content == 'My own words' and 'edited by you' in says(chat.transcript)")

    more(walk, "New chat from here", 1)
    walk.until(f"chat.controller.conversation.id != {number} and len(chat.controller.tree) == 2")
    walk.say("Go on")
    assert walk.ask("chat.sidebar.model.rowCount()") == 1, "both were begun today"

    more(walk, "Delete from here on", 2)
    walk.click("Delete", "chat.banner")
    walk.until("len(chat.controller.tree) == 2")


def test_many_chats_are_deleted_together_and_come_back(walk):
    walk.new_chat()
    walk.say("Alpha")
    walk.new_chat()
    walk.say("Beta")
    walk.until("spot('Alpha', chat.sidebar) and spot('Beta', chat.sidebar)")
    walk.click("Alpha", "chat.sidebar")
    walk.until("chat.controller.conversation.title == 'Alpha'")
    walk.until("chat.sidebar.tree.currentIndex().data() == 'Alpha'")
    walk.screen.hand("keydown", "ctrl")
    walk.click("Beta", "chat.sidebar")
    walk.screen.hand("keyup", "ctrl")
    walk.until("len(chat.sidebar._selected()) == 2")
    walk.key("Delete")
    walk.until("'2 chats deleted' in chat.banner.text and not spot('Alpha', chat.sidebar)")
    walk.click("Undo", "chat.banner")
    walk.until("spot('Alpha', chat.sidebar) and spot('Beta', chat.sidebar)")


def test_a_schema_and_a_stop_are_kept_with_the_chat_and_obeyed(walk):
    walk.new_chat()
    walk.click("System prompt and sampling", "chat.bar")
    walk.click("JSON schema", "chat.options")
    walk.type('{"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"]}')
    walk.click("Seed", "chat.options")
    walk.type("7")
    walk.until("chat.controller.conversation.sampling.get('seed') == 7")
    walk.until("'json_schema' in chat.controller.conversation.sampling")
    walk.click("System prompt and sampling", "chat.bar")
    walk.say("Is it so?")
    assert isinstance(json.loads(walk.ask(f"{LAST}.content"))["n"], bool)

"""Titles and prompt prefill: background requests within their limits, never to a model that is not loaded."""

import pytest

from app.db import conversations
from app.gui.chat import background_requests, compactor
from app.gui.chat.background_requests import clean_title
from app.gui.chat.page import ChatPage
from engine.api.chat import ModelRow


@pytest.fixture
def page(show, services, server, monkeypatch, qtbot):
    monkeypatch.setattr(background_requests, "_IDLE_MS", 50)
    monkeypatch.setattr(background_requests, "_PAUSE_MS", 50)
    monkeypatch.setattr(compactor, "_IDLE_MS", 50)
    server.models = [
        ModelRow(
            id="far", name="Far", context_length=4096, capabilities=("chat",), state="loaded", origin="remote"
        ),
        ModelRow(id="m", name="M", context_length=4096, capabilities=("chat",), state="loaded"),
    ]
    services.models.refresh()
    qtbot.waitUntil(lambda: services.models.get("m") is not None)
    return show(ChatPage(services))


def aside(server):
    return [body for body in server.bodies if body.get("priority") == "side"]


def ask(qtbot, page, text):
    page.composer.set_text(text)
    page.composer.send()
    qtbot.waitUntil(lambda: bool(page.controller.tree.path()) and not page.controller.busy)


def test_a_new_chat_is_named_aside_and_a_name_of_ones_own_stays(qtbot, page, server, services):
    server.pieces = ['Title: "Tides and boats".']
    titled = []
    page.side.titles.titled.connect(titled.append)
    ask(qtbot, page, "Tell me about tides, please, and about boats")
    qtbot.waitUntil(lambda: bool(titled))
    assert services.store.submit(conversations.listing).result()[0].title == "Tides and boats"
    assert page.controller.conversation.title == "Tides and boats"
    asked = aside(server)[-1]
    assert asked["max_tokens"] < 50
    assert [m["role"] for m in asked["messages"]] == ["user", "assistant", "user"]

    page.new_chat()
    ask(qtbot, page, "Something else entirely")
    page.controller.change(title="Mine")
    qtbot.wait(400)
    assert sorted(c.title for c in services.store.submit(conversations.listing).result()) == [
        "Mine",
        "Tides and boats",
    ]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Here is a title: **Boats**", "Boats"),
        ("“Tides”\nmore", "Tides"),
        ("", ""),
        ("...", ""),
        ("x" * 200, ""),
        ("Here's the thing about tides", "Here's the thing about tides"),
    ],
)
def test_only_what_can_be_a_title_becomes_one(text, title):
    assert clean_title(text) == title


def test_the_draft_is_read_as_it_grows_and_not_when_it_is_sent(qtbot, page, server, services):
    page.composer.set_text("The keeper of the lighthouse went down")
    qtbot.waitUntil(lambda: len(aside(server)) == 1)
    first = aside(server)[0]
    assert first["messages"] == [{"role": "user", "content": "The keeper of the lighthouse went "}]
    assert first["max_tokens"] == 1
    page.composer.set_text("The keeper of the lighthouse went down to")
    qtbot.wait(300)
    assert len(aside(server)) == 1, "too little was added"
    page.composer.set_text("The keeper of the lighthouse went down to the boats again")
    qtbot.waitUntil(lambda: len(aside(server)) == 2)
    assert page.side.read_ahead.wasted_chars == 0

    services.settings.set("chat.read_ahead", "off")
    page.composer.set_text("Another sentence that has nothing to do with the first one at all")
    qtbot.wait(300)
    assert len(aside(server)) == 2


def test_what_is_read_in_vain_is_bounded(qtbot, page, server, monkeypatch):
    monkeypatch.setattr(background_requests, "MAX_WASTED_CHARS", {"mains": 100, "battery": 100})
    reading = page.side.read_ahead
    for n in range(6):
        seen = len(aside(server))
        page.composer.set_text(f"{n} " + "words that are soon thrown away " * 2)
        qtbot.waitUntil(lambda seen=seen: len(aside(server)) > seen or reading.wasted_chars > 100)
        if reading.wasted_chars > 100:
            break
    assert 1 <= len(aside(server)) <= 3
    assert reading.wasted_chars < 300


def test_on_battery_nothing_is_read_unless_it_is_wished(qtbot, page, server, services, monkeypatch):
    monkeypatch.setattr(background_requests.PromptPrefill, "_power", lambda _: "battery")
    page.composer.set_text("The keeper of the lighthouse went down")
    qtbot.wait(300)
    assert aside(server) == []
    services.settings.set("chat.read_ahead", "always")
    page.composer.set_text("The keeper of the lighthouse went down to the boats")
    qtbot.waitUntil(lambda: len(aside(server)) == 1)


def test_nothing_is_asked_aside_of_a_model_of_another_server_and_none_is_chosen(qtbot, page, server, services):
    """No draft, title or summary is made in idle time; the local chat afterwards shows when they would be."""
    assert services.models.default == "m"
    assert page.controller.conversation.model == "m"
    page.controller.change(model="far")
    page.composer.set_text("The keeper of the lighthouse went down to the boats")
    ask(qtbot, page, "Tell me about tides, please " * 50)
    path = page.controller.tree.path()
    page.controller.compactor.on_answered(page.controller.conversation, path, 4000)
    page.new_chat()
    page.controller.change(model="m")
    page.composer.set_text("The keeper of the lighthouse went down to the boats")
    qtbot.waitUntil(lambda: len(aside(server)) == 1)
    ask(qtbot, page, "Tell me about tides, please")
    qtbot.waitUntil(lambda: any(body["max_tokens"] == 24 for body in aside(server)))
    page.controller.compactor.on_answered(page.controller.conversation, path, 4000)
    qtbot.waitUntil(lambda: any("/tokenize" in path for _, path, _ in server.requests))
    assert {body["model"] for body in aside(server)} == {"m"}
    asked = [body for _, path, body in server.requests if path == "/tokenize"]
    assert {(body["model"], body["priority"]) for body in asked} == {("m", "side")}

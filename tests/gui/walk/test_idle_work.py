"""The window's background requests: a chat's title, by its model, and never by loading a model."""

import time

import pytest

from tests.gui.walk.walker import ROOT


@pytest.fixture(scope="module")
def walk(open_window, tmp_path_factory):
    """A library with the small model under another name: the demo model gives its chats no titles."""
    home = tmp_path_factory.mktemp("walk")
    (home / "models").mkdir()
    raw = (ROOT / "assets" / "models" / "spark-f16.gguf").read_bytes()
    name = raw.index(b"general.name") + len(b"general.name") + 4 + 8  # the type of a value and its length
    (home / "models" / "wanderer.gguf").write_bytes(raw[:name] + b"W" + raw[name + 1 :])
    return open_window(home=home)


def test_a_model_that_was_ejected_before_its_chat_has_a_title_stays_out_of_memory(walk):
    walk.until("any(c.id == 'wanderer' for c in desktop.services.models.choices)")
    walk.ask("chat.use_model('wanderer')")
    walk.ask("chat.side.titles._idle.setInterval(20_000)")  # two seconds must pass before a busy computer ejects it
    walk.say("What is Tessera?")
    assert walk.loaded() == ["wanderer"]
    walk.manage("models/wanderer/unload", {})
    assert walk.ask("chat.side.titles._idle.isActive()"), "its title is still to be asked for"
    walk.ask("chat.side.titles._idle.start(100)")
    walk.until("not chat.side.titles._idle.isActive()")
    time.sleep(3)
    assert walk.loaded() == []
    walk.say("And what is quantization?")
    assert walk.loaded() == ["wanderer"], "a question loads it"

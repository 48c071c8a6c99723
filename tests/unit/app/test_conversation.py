"""A conversation in the terminal: Ctrl-C ends an answer, not the conversation."""

import io
import sys

import click
import pytest

from app.answer_facts import AnswerFacts
from app.cli.chat_tools import ChatTools
from app.cli.conversation import Conversation
from app.client import ChatDelta


class Server:
    """Gives the same answer to every question, in one chunk."""

    def __init__(self):
        self.asked = []

    def chat(self, model, messages, **options):
        self.asked.append(messages[-1]["content"])
        return _Pieces()


class _Pieces:
    def __iter__(self):
        yield ChatDelta(text="Yes.", facts=AnswerFacts(finish_reason="stop"))

    def close(self):
        pass


def test_ctrl_c_just_as_an_answer_ends_goes_on_with_the_next_line(monkeypatch, capsys):
    server, pressed = Server(), []
    conversation = Conversation(server, "m", None, {})
    tell = conversation._print_end

    def told(*arguments, **more):
        if not pressed:
            pressed.append("Ctrl-C")
            raise KeyboardInterrupt
        tell(*arguments, **more)

    monkeypatch.setattr(conversation, "_print_end", told)
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n/exit\nthree\n"))
    conversation.talk()
    assert server.asked == ["one", "two"]
    assert capsys.readouterr().out.count("Yes.") == 2


def test_a_text_is_not_sent_as_an_image(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("The rent is due on the fifth.")
    conversation = Conversation(Server(), "m", None, {})
    with pytest.raises(click.ClickException, match=r"notes\.txt is not an image; --file sends it as text"):
        conversation.attach(notes, as_image=True)
    conversation.attach(notes)


def test_unknown_tools_are_refused_before_the_first_question(tmp_path, monkeypatch):
    monkeypatch.setenv("TESSERA_HOME", str(tmp_path))
    with pytest.raises(click.ClickException, match="There are no tools 'nope'; `tessera tools list` shows them"):
        ChatTools(["nope"])

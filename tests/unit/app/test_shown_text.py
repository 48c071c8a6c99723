"""What models, files and servers say is spelled out on a terminal, never obeyed by it."""

import io
import re
from pathlib import Path

import click
import pytest
from rich.console import Console

from app.cli import main as cli_main
from app.cli.chat import Conversation
from app.cli.say import say
from app.cli.shown import escape
from app.client import Answer

ESCAPES = "\x1b[2J\x1b]52;c;aGk=\x07\u202e\x9b8m"
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CLI = Path(cli_main.__file__).parent


class Client:
    """Answers with what it is given."""

    def __init__(self, *texts):
        self.texts = texts

    def chat(self, *_, **__):
        for text in self.texts:
            yield Answer(text=text)


def test_an_answer_in_the_terminal(capsys):
    Conversation(Client("safe ", ESCAPES, "\tdone\n"), "m", None, {}).ask("x", as_json=False)
    shown = capsys.readouterr().out
    assert not STEERING.search(shown)
    assert "safe " in shown
    assert "\\x1b[2J" in shown
    assert "\tdone\n" in shown


def test_an_error_in_the_terminal(monkeypatch, capsys):
    def fail(**_):
        raise click.ClickException(f"the template says {ESCAPES}")

    monkeypatch.setattr(cli_main.cli, "main", fail)
    with pytest.raises(SystemExit):
        cli_main.main()
    assert not STEERING.search(capsys.readouterr().err)


def test_names_in_tables():
    out = io.StringIO()
    Console(file=out, force_terminal=False).print(f"[bold]{escape('[red]' + ESCAPES)}[/bold]")
    assert not STEERING.search(out.getvalue().rstrip("\n"))
    assert "[red]" in out.getvalue()


def test_tables_escape_through_one_door():
    rough = [p.name for p in CLI.glob("*.py") if "from rich.markup import" in p.read_text(encoding="utf-8")]
    assert rough == []


def test_lines_are_printed_through_one_door():
    """`say` spells out; what is left escapes by itself (JSON), is spelled out beside it, or steers the line."""
    harmless = re.compile(r"json|shown|as_csv|describe|format_message|033\[K\"")
    rough = [
        f"{path.name}: {call}"
        for path in CLI.glob("*.py")
        for call in re.findall(r"click\.s?echo\([^\n]*\n?[^\n]*", path.read_text())
        if not harmless.search(call)
    ]
    assert rough == []


def test_a_line_of_a_command(capsys):
    say(f"model {ESCAPES}", fg="yellow")
    assert not STEERING.search(re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out))

"""Texts from models, files and servers are escaped on a terminal, so that it does not execute them."""

import io
import re
from pathlib import Path

import click
import pytest
from rich.console import Console

from app.cli import main as cli_main
from app.cli.console import console, escape, table
from app.cli.conversation import Conversation
from app.cli.echo import echo, echo_result
from app.client import ChatDelta

ESCAPES = "\x1b[2J\x1b]52;c;aGk=\x07\u202e\x9b8m"
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
CLI = Path(cli_main.__file__).parent


class Client:
    """Returns the given text."""

    def __init__(self, *texts):
        self.texts = texts

    def chat(self, *_, **__):
        for text in self.texts:
            yield ChatDelta(text=text)


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


def test_a_line_break_in_a_name_does_not_start_a_line(capsys):
    name = "model\nfits on CPU"
    console().print(escape(name))
    console().print(table(("model", "size"), [(name, "1\r2")], cut="model"))
    out = capsys.readouterr().out
    assert out.count("model\\nfits on CPU") == 2
    assert "1\\r2" in out


def test_a_table_shows_any_text_as_it_is(capsys):
    rows = [("[red]a", "1", ESCAPES + "b"), ("c", "2,000", "d")]
    console().print(table(("name", "bytes", "from"), rows, cut="from", right="bytes"))
    lines = capsys.readouterr().out.splitlines()
    assert not any(map(STEERING.search, lines))
    assert [line.split()[0] for line in lines] == ["name", "[red]a", "c"]
    assert "\\x1b[2J" in lines[1]
    assert lines[1].index("1  ") == lines[2].index("2,000") + 4


@pytest.mark.parametrize(("width", "whole"), [(None, True), (60, False)])
def test_a_terminal_cuts_one_column_and_a_pipe_none(monkeypatch, capsys, width, whole):
    monkeypatch.delenv("COLUMNS", raising=False)
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    rows = [("smollm2-135m-instruct", "93.8 MiB", "online", "somebody/a-very-long-name-of-a-repository-GGUF" * 2)]
    console().print(table(("id", "size", "state", "from"), rows, cut="from"))
    head, line = (text.rstrip() for text in capsys.readouterr().out.splitlines())
    assert head.split() == ["id", "size", "state", "from"]
    assert line.startswith("smollm2-135m-instruct  93.8 MiB  online  somebody/")
    assert line.endswith(rows[0][-1] if whole else "…")
    assert whole or len(line) == width


def test_tables_are_made_through_one_door():
    rough = [
        p.name
        for p in CLI.glob("*.py")
        if re.search(r"from rich\.(markup|table) import|from rich import", p.read_text(encoding="utf-8"))
    ]
    assert rough == ["console.py"]


def test_lines_are_printed_through_one_door():
    """`echo` escapes; other calls either escape by themselves (JSON), escape next to it, or control the line."""
    harmless = re.compile(r"json|shown|as_csv|describe|format_message|033\[K\"")
    rough = [
        f"{path.name}: {call}"
        for path in CLI.glob("*.py")
        for call in re.findall(r"click\.s?echo\([^\n]*\n?[^\n]*", path.read_text())
        if not harmless.search(call)
    ]
    assert rough == []


def test_a_line_of_a_command(capsys):
    echo(f"model {ESCAPES}", fg="yellow")
    assert not STEERING.search(re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out))


def test_a_coloured_line_has_colours_and_escapes_what_others_wrote(capsys):
    """`click.style` in a text of `echo` would be escaped too: "\\x1b[31mfail" was shown by certify and evaluate."""
    context = click.Context(click.Command("test"), color=True)
    with context:
        echo_result(f"a case {ESCAPES}", passed=False)
    shown = capsys.readouterr().out
    assert shown.startswith("\x1b[31mfail\x1b[0m  a case \\x1b[2J")
    assert not STEERING.search(shown.removeprefix("\x1b[31mfail\x1b[0m"))
    styled = [file.name for file in CLI.glob("*.py") if "click.style(" in file.read_text("utf-8")]
    assert styled == ["echo.py"]

"""The command that opens a file at a line, by setting and installed programs. Nothing is started here."""

import os
import sys
from pathlib import Path

import pytest

from app.code.errors import NoEditor
from app.code.open_in_editor import editor_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the programs of a Linux desktop")
FILE = Path("/srv/a project/src/main.py")


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put programs of these names on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(*names):
        for name in names:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
        return tmp_path

    return put


@pytest.mark.parametrize(
    ("choice", "installed", "command"),
    [
        ("", ("code", "zed", "xdg-open"), ("code", "--goto", f"{FILE}:7")),
        ("", ("codium", "zed"), ("codium", "--goto", f"{FILE}:7")),
        ("", ("zed", "xdg-open"), ("zed", f"{FILE}:7")),
        ("", ("xdg-open",), ("xdg-open", str(FILE))),
        (" Zed ", ("code", "zeditor"), ("zeditor", f"{FILE}:7")),
        ("desktop", ("code", "xdg-open"), ("xdg-open", str(FILE))),
        ("kate -l {line} {file}", ("kate", "code"), ("kate", "-l", "7", str(FILE))),
        ("gvim --remote '+{line}'", ("gvim",), ("gvim", "--remote", "+7", str(FILE))),
    ],
)
def test_the_setting_and_what_is_installed_decide(programs, choice, installed, command):
    folder = programs(*installed)
    assert editor_command(choice, FILE, 7) == (str(folder / command[0]), *command[1:])


@pytest.mark.parametrize(
    ("choice", "installed", "words"),
    [
        ("zed", ("code",), "zed is not installed"),
        ("kate", (), "kate is not installed"),
        ("kate '", ("kate",), "cannot be read"),
        ("", (), "no VS Code, no Zed and no xdg-open"),
    ],
)
def test_what_is_missing_is_said(programs, choice, installed, words):
    programs(*installed)
    with pytest.raises(NoEditor, match=words) as refused:
        editor_command(choice, FILE, 7)
    assert "Choose an editor in the settings" in str(refused.value)


def test_no_file_is_started_and_no_name_is_part_of_a_command(programs, monkeypatch):
    folder = programs("xdg-open", "kate")
    with pytest.raises(NoEditor, match="would start"):
        editor_command("desktop", Path("/srv/run me.desktop"), 1)
    odd = Path("/srv/a; rm -rf $HOME {line}.py")
    assert editor_command("kate {file}", odd, 3) == (str(folder / "kate"), str(odd))
    (folder / "code.cmd").write_text("")
    (folder / "code.cmd").chmod(0o755)
    with pytest.raises(NoEditor, match="command interpreter"):
        editor_command(f"{folder / 'code.cmd'} --goto {{file}}", Path("/srv/a&calc.py"), 1)
    monkeypatch.setenv("PATH", os.pathsep.join(["", "."]))
    monkeypatch.chdir(folder)
    with pytest.raises(NoEditor):
        editor_command("kate", FILE, 1)

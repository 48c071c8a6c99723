"""The man page and the shell completions, generated from the commands."""

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from app.cli.main import COMMANDS, cli

_SHELLS: dict[str, type[BashComplete] | type[ZshComplete] | type[FishComplete]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}


def manual(version: str) -> str:
    """The man page `tessera(1)` as roff."""
    lines = [f'.TH TESSERA 1 "" "Tessera {version}" "User Commands"', ".SH NAME"]
    lines += [
        "tessera \\- run open AI models on this computer",
        ".SH SYNOPSIS",
        ".B tessera",
        "[COMMAND] [OPTIONS]",
    ]
    lines += [
        ".SH DESCRIPTION",
        "Without a command the window opens, or a chat where there is no display.",
        ".SH COMMANDS",
    ]
    for name, (_, text) in COMMANDS.items():
        lines += [".TP", f".B {_roff(name)}", _roff(text)]
    lines += [".SH OPTIONS", ".TP", ".B \\-\\-help", "Every command has its own --help.", ".SH ENVIRONMENT"]
    lines += [".TP", ".B TESSERA_HOME", "One folder for settings, models, state, cache and logs.", ".SH FILES"]
    lines += [
        "Without TESSERA_HOME they are below ~/.config/tessera, ~/.local/share/tessera, ~/.local/state/tessera"
    ]
    lines += ["and ~/.cache/tessera.", ""]
    return "\n".join(lines)


def completion(shell: str) -> str:
    """The completion script for a shell (bash, zsh, fish)."""
    assert isinstance(cli, click.Group)
    source: str = _SHELLS[shell](cli, {}, "tessera", "_TESSERA_COMPLETE").source()
    return source


def _roff(text: str) -> str:
    return text.replace("\\", "\\\\").replace("-", "\\-").replace("\n.", "\n\\&.")

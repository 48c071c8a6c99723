"""Read lines that a user types: with editing, history and paste in a terminal, or plain from a pipe."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.services import user_paths

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

# Starts and ends a message of several lines, as in Ollama.
QUOTES: Final = '"""'
_MAX_HISTORY_BYTES: Final = 1 << 20

Completions = Mapping[str, Any]


def line_reader(history: str, completions: Completions) -> Callable[[], str]:
    """A function that returns the next message: one line, or several between triple quotes.

    In a terminal, messages are stored in the file `history` of the state folder, and Tab completes commands.
    `completions` has the form of prompt_toolkit's NestedCompleter, with "path" for a file.
    The function raises EOFError at the end of the input and KeyboardInterrupt for Ctrl-C.
    """
    return _terminal_reader(history, completions) if sys.stdin.isatty() else _piped_message


def whole_text(message: str) -> str:
    """The message without its triple quotes."""
    text = message.strip()
    if text.startswith(QUOTES):
        return text[len(QUOTES) :].removesuffix(QUOTES).strip("\n")
    return text


def command_of(line: str) -> tuple[str, str] | None:
    """Name and argument of a line such as `/file notes.txt`; None if it is not a command.

    A path such as /etc/hosts is not a command.
    """
    word, _, argument = line.partition(" ") if "\n" not in line.split(" ", 1)[0] else line.partition("\n")
    if not word.startswith("/") or "/" in word[1:]:
        return None
    return word[1:], argument.strip()


def unknown_command(name: str, names: tuple[str, ...]) -> str:
    """Error text for an unknown command."""
    near = get_close_matches(name, names, 1)
    return f"There is no /{name}." + (f" Did you mean /{near[0]}?" if near else " /help shows the commands.")


def _is_open(text: str) -> bool:
    return text.count(QUOTES) == 1


def _piped_message() -> str:
    lines: list[str] = []
    while not lines or _is_open("".join(lines)):
        line = sys.stdin.readline()
        if not line:
            if lines:
                break
            raise EOFError
        lines.append(line)
    return "".join(lines).rstrip("\n")


def _terminal_reader(history: str, completions: Completions) -> Callable[[], str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import NestedCompleter, PathCompleter
    from prompt_toolkit.output import create_output

    nested = {
        name: PathCompleter(expanduser=True) if inner == "path" else inner for name, inner in completions.items()
    }
    session: PromptSession[str] = PromptSession(
        history=_history(history),
        completer=NestedCompleter.from_nested_dict(nested),
        complete_while_typing=False,
        multiline=True,
        prompt_continuation="  ",
        key_bindings=_keys(),
        output=create_output(always_prefer_tty=True),  # stdout may be redirected to a file
    )
    return lambda: session.prompt("> ")


def _keys() -> "KeyBindings":
    """Enter sends, except within triple quotes; Alt-Enter starts a new line."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: "KeyPressEvent") -> None:
        buffer = event.current_buffer
        if _is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: "KeyPressEvent") -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


def _history(name: str) -> Any:
    """Input history, readable only by this user; in memory if the file cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = user_paths().state / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        with suppress(OSError):
            path.chmod(0o600)
        _shorten(path)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _shorten(path: Path) -> None:
    """Delete the older half of a long history."""
    from devices.atomic_file import write_atomically

    if path.stat().st_size > _MAX_HISTORY_BYTES:
        rest = path.read_bytes()[-_MAX_HISTORY_BYTES // 2 :]
        write_atomically(path, rest[max(rest.find(b"\n\n# "), 0) :], mode=0o600)

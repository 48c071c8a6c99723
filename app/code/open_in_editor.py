"""Open a project's file at a line in the user's editor."""

import shlex
import sys
from pathlib import Path
from typing import Final

from app.code.errors import NoEditor
from devices.programs import installed_program

# Names of the setting: programs by preference, and the arguments that open a file at a line.
_EDITORS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "vscode": (("code", "codium", "code-insiders"), ("--goto", "{file}:{line}")),
    "zed": (("zed", "zeditor"), ("{file}:{line}",)),
}
DESKTOP: Final = "desktop"
# The desktop would start what these files name, not show them.
_STARTED: Final = frozenset({".desktop", ".appimage"})
# A batch file gets its arguments through the command interpreter, which acts on these characters.
_INTERPRETED: Final = frozenset("&|<>^%!\"'()`;,\r\n")


def editor_command(choice: str, file: Path, line: int) -> tuple[str, ...]:
    """Program and arguments that open `file` (an absolute path) at `line`.

    `choice` is "vscode", "zed", "desktop" or a command with {file} and {line}; empty: the first of these three that
    is installed. Only the place of a program on PATH counts, never the project's folder.

    Raises: NoEditor: the program is not installed, or the file is of a kind that would be started.
    """
    choice = choice.strip()
    if choice.lower() == DESKTOP:
        return _desktop(file)
    if choice and choice.lower() not in _EDITORS:
        return _own(choice, file, line)
    for name in [choice.lower()] if choice else _EDITORS:
        programs, arguments = _EDITORS[name]
        program = next(filter(None, map(installed_program, programs)), None)
        if program is not None:
            return _checked((program, *_filled(arguments, file, line)))
    if choice:
        raise NoEditor(f"{_EDITORS[choice.lower()][0][0]} is not installed, or not on PATH.")
    return _desktop(file)


def _own(choice: str, file: Path, line: int) -> tuple[str, ...]:
    try:
        words = shlex.split(choice, posix=sys.platform != "win32")
    except ValueError as error:
        raise NoEditor(f"The command in the settings cannot be read: {error}.") from error
    program = words[0] if Path(words[0]).is_absolute() else installed_program(words[0])
    if program is None or not Path(program).is_file():
        raise NoEditor(f"{words[0]} is not installed, or not on PATH.")
    arguments = tuple(words[1:])
    if not any("{file}" in word for word in arguments):
        arguments = (*arguments, "{file}")
    return _checked((program, *_filled(arguments, file, line)))


def _desktop(file: Path) -> tuple[str, ...]:
    """The desktop's default text editor. Tested only on Linux."""
    if sys.platform == "win32":
        return ("notepad.exe", str(file))
    if sys.platform == "darwin":
        return ("/usr/bin/open", "-t", str(file))
    if file.suffix.lower() in _STARTED:
        raise NoEditor(f"{file.name} is not opened: the desktop would start what it names.")
    program = installed_program("xdg-open")
    if program is None:
        raise NoEditor("There is no VS Code, no Zed and no xdg-open.")
    return (program, str(file))


def _filled(arguments: tuple[str, ...], file: Path, line: int) -> tuple[str, ...]:
    return tuple(word.replace("{line}", str(line)).replace("{file}", str(file)) for word in arguments)


def _checked(command: tuple[str, ...]) -> tuple[str, ...]:
    is_batch = Path(command[0]).suffix.lower() in {".cmd", ".bat"}
    if is_batch and any(_INTERPRETED & set(word) for word in command[1:]):
        raise NoEditor("The path contains a character that the command interpreter would act on.")
    return command

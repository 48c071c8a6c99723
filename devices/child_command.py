"""How this program starts itself: as a child that runs one of its modules, or as another of its commands.

A source installation asks the interpreter for a module. A frozen build has no interpreter to ask: its executable is
the `tessera` command, which `app.cli.main` turns into the child when `--child` comes first.
"""

import sys
from pathlib import Path
from typing import Final

from devices.programs import installed_program

CHILD_OPTION: Final = "--child"
# Not `-m`, which would look for the module in the current folder first.
_START: Final = str(Path(__file__).with_name("start_module.py"))


def child_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line that runs `module` of this program in a process of its own."""
    if getattr(sys, "frozen", False):
        return (sys.executable, CHILD_OPTION, module, *arguments)
    return (sys.executable, "-X", "utf8", _START, module, *arguments)


def own_command(*arguments: str) -> tuple[str, ...]:
    """The command line of `tessera` with these arguments."""
    if getattr(sys, "frozen", False):
        return (sys.executable, *arguments)
    return (sys.executable, _START, "app", *arguments)


def interpreter(*arguments: str) -> tuple[str, ...]:
    """The command line of a Python interpreter, for code that is no module of this program.

    Raises: FileNotFoundError: this is a frozen build, and no Python is installed.
    """
    if not getattr(sys, "frozen", False):
        return (sys.executable, *arguments)
    found = installed_program("python3") or installed_program("python")
    if found is None:
        raise FileNotFoundError("no Python is installed; this build of Tessera has none of its own for other code")
    return (found, *arguments)

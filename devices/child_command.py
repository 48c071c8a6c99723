"""How this program starts itself: as a child that runs one of its modules, or as another of its commands.

A source installation asks the interpreter for a module. A frozen build has no interpreter to ask: its executable is
the `tessera` command, which `app.cli.main` turns into the child when `--child` comes first.
"""

import sys
from typing import Final

CHILD_OPTION: Final = "--child"


def child_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line that runs `module` of this program in a process of its own."""
    if getattr(sys, "frozen", False):
        return (sys.executable, CHILD_OPTION, module, *arguments)
    return (sys.executable, "-X", "utf8", "-m", module, *arguments)


def own_command(*arguments: str) -> tuple[str, ...]:
    """The command line of `tessera` with these arguments."""
    if getattr(sys, "frozen", False):
        return (sys.executable, *arguments)
    return (sys.executable, "-m", "app", *arguments)

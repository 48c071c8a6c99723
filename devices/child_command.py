"""Builds command lines that start this program: as a child that runs one of its modules, or as another command.

A source installation starts the Python interpreter with a module. A frozen build has no interpreter: its executable
is the `tessera` command, which `app.cli.main` turns into the child if `--child` comes first.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from devices.programs import installed_program

CHILD_OPTION: Final = "--child"
# Not `-m`, which would search the current folder first.
_START: Final = str(Path(__file__).with_name("start_module.py"))


def child_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line that runs `module` of this program in a separate process."""
    if getattr(sys, "frozen", False):
        return (sys.executable, CHILD_OPTION, module, *arguments)
    return (sys.executable, "-X", "utf8", _START, module, *arguments)


def own_command(*arguments: str) -> tuple[str, ...]:
    """The command line of `tessera` with these arguments."""
    if getattr(sys, "frozen", False):
        return (sys.executable, *arguments)
    return (sys.executable, _START, "app", *arguments)


def interpreter(*arguments: str) -> tuple[str, ...]:
    """The command line of a Python interpreter, for code that is not a module of this program.

    Raises: FileNotFoundError: this is a frozen build, and no Python is installed.
    """
    if not getattr(sys, "frozen", False):
        return (sys.executable, *arguments)
    python = installed_program("python3") or installed_program("python")
    if python is None:
        raise FileNotFoundError("no Python is installed; this build of Tessera has none of its own for other code")
    return (python, *arguments)


# Reply of a child started by `run_child`: one JSON object on a line of its standard output.

MAX_OUTPUT_BYTES = 1 << 20


def write_answer(answer: Mapping[str, Any]) -> None:
    """Write the reply; `error` in it says why there is no result."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def answer_with(find: Callable[[], Mapping[str, Any]], *errors: type[Exception]) -> int:
    """Write the result of `find`, or which of `errors` it raised; return the child's exit code."""
    try:
        answer = find()
    except errors as error:
        write_answer({"error": str(error)})
        return 1
    write_answer(answer)
    return 0


def answer_in(stdout: bytes) -> Mapping[str, Any] | None:
    """The last line that is a JSON object: native libraries also print to this output."""
    for line in reversed(stdout[:MAX_OUTPUT_BYTES].splitlines()):
        if line.lstrip().startswith(b"{"):
            try:
                answer = json.loads(line)
            except (ValueError, RecursionError):
                return None
            return answer if isinstance(answer, dict) else None
    return None

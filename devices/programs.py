"""Finds a program by its name, in folders where an opened project cannot place its own program."""

import os
import shutil
import sys
from pathlib import Path


def installed_program(name: str) -> str | None:
    """The absolute path of `name` on PATH; None if it is not installed.

    Skips relative entries of PATH and, on Windows, the current folder, which Windows searches first. Otherwise,
    starting Tessera in an unpacked folder would run that folder's git.exe.
    """
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if not Path(folder).is_absolute():
            continue
        # A name with a folder is not searched elsewhere; PATHEXT still applies on Windows.
        program = shutil.which(str(Path(folder, name)))
        if program is not None and (sys.platform != "win32" or Path(program).is_file()):
            return program
    return None

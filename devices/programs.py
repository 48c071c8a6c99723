"""Find a program by its name, in folders that no opened project can lend its own program to."""

import os
import shutil
import sys
from pathlib import Path


def installed_program(name: str) -> str | None:
    """The absolute path of `name` on PATH; None when it is not installed.

    Relative entries of PATH are passed over, and on Windows the current folder with them, which is searched first
    there: whoever starts us in an unpacked folder would else run that folder's git.exe.
    """
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if not Path(folder).is_absolute():
            continue
        # With a folder in it the name is not looked for anywhere else; PATHEXT still counts on Windows.
        found = shutil.which(str(Path(folder, name)))
        if found is not None and (sys.platform != "win32" or Path(found).is_file()):
            return found
    return None

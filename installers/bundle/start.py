"""Entry point of the executables: the `tessera` command, and on Windows the window without a console."""

import sys
from pathlib import Path

from app.cli.main import COMMANDS, main
from devices.child_command import CHILD_OPTION

WINDOWED = "tessera-window"

if __name__ == "__main__":
    # Started from a menu or by opening a file. The program's child processes and commands also use this executable.
    files = sys.argv[1:2] and sys.argv[1] not in (*COMMANDS, CHILD_OPTION)
    if files and Path(sys.executable).stem == WINDOWED:
        sys.argv.insert(1, "window")
    main()

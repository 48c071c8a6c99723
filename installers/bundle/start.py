"""What the executables run: the `tessera` command, and on Windows the window without a console."""

import sys
from pathlib import Path

from app.cli.main import COMMANDS, main
from devices.child_command import CHILD_OPTION

WINDOWED = "tessera-window"

if __name__ == "__main__":
    # Opened by a menu or by a file; its own children and commands come back to the same executable.
    files = sys.argv[1:2] and sys.argv[1] not in (*COMMANDS, CHILD_OPTION)
    if files and Path(sys.executable).stem == WINDOWED:
        sys.argv.insert(1, "window")
    main()

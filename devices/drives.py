"""Whether a file is gone, or only the drive it is on."""

import os
from pathlib import Path
from typing import Final

# Where systems put drives that come and go. Source: udisks2, the Filesystem Hierarchy Standard, macOS.
_DRIVES: Final = tuple(map(Path, ("/media", "/run/media", "/mnt", "/Volumes")))


def drive_is_here(path: Path) -> bool:
    """The drive that holds, or held, this file can be read now."""
    if not Path(path.anchor).exists():  # a letter of Windows without its drive
        return False
    if not any(path.is_relative_to(root) for root in _DRIVES):
        return True
    return any(parent not in {*_DRIVES, Path(path.anchor)} and os.path.ismount(parent) for parent in path.parents)

"""Small files, written whole."""

import os
from pathlib import Path


def write_atomically(path: Path, raw: bytes, *, mode: int = 0o666) -> None:
    """Write a file: readers see the old one or the new one; `mode` less the umask. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(raw)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise

"""`tessera` on a computer whose memory a test sets: `python -m tests.support.small_machine serve …`.

The file that TESSERA_TEST_MEMINFO names replaces /proc/meminfo, and may change while the server runs.
"""

import os
from pathlib import Path

from devices.host import Host
from devices.probes import ram

VARIABLE = "TESSERA_TEST_MEMINFO"
# Reserve of the system on a computer with 8 GiB. Source: MIN_RESERVE_BYTES of devices/probes/gpu_linux.py.
TOTAL_KIB, RESERVE_KIB = 8 << 20, 2 << 20


def set_free(file: Path, free_bytes: int) -> None:
    """Set the free bytes for models."""
    made = file.with_suffix(".new")
    made.write_text(f"MemTotal: {TOTAL_KIB} kB\nMemAvailable: {RESERVE_KIB + free_bytes // 1024} kB\n")
    made.replace(file)


def main() -> None:
    """The command line, which reads the memory from that file."""
    from app.cli.main import main as command_line

    usual = ram.text

    def text(host: Host, path: str) -> str | None:
        return Path(os.environ[VARIABLE]).read_text() if path == "/proc/meminfo" else usual(host, path)

    ram.text = text
    command_line()


if __name__ == "__main__":
    main()

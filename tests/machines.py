"""Recordings of the machines in tests/data/machines/machines.json: files laid out as each system shows them.

The JSON holds values seen on real machines; this lays them out as sysfs, procfs, registry and sysctl do, so
that the probes that read a live machine read these. Where a machine's source does not tell a value the probes
need (core count of a named CPU, say), the product's published value is used.
"""

import json
from pathlib import Path
from typing import Any

from tests.linux_machines import linux, wsl
from tests.other_machines import macos, windows

SOURCE = Path(__file__).parent / "data" / "machines" / "machines.json"


def machines() -> dict[str, dict[str, Any]]:
    """Recording of every machine in machines.json, by id."""
    build = {"linux": linux, "windows": windows, "macos": macos, "wsl2": wsl}
    entries = json.loads(SOURCE.read_text(encoding="utf-8"))["machines"]
    return {
        entry["id"]: build[entry["os"].removesuffix("-vm").removesuffix("-container")](entry) for entry in entries
    }

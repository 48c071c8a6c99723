"""Recordings of the machines in tests/data/machines/machines.json: files laid out as each system shows them.

The JSON holds values seen on real machines; this lays them out as sysfs, procfs, registry and sysctl do, so
that the probes that read a live machine read these. Where a machine's source does not tell a value the probes
need (core count of a named CPU, say), the product's published value is used.
"""

import functools
import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

from devices.recording import RecordedHost
from devices.report import recorded_report
from devices.types import Machine
from tests.support.machines.linux_machines import linux, wsl
from tests.support.machines.other_machines import macos, windows

SOURCE = Path(__file__).parents[2] / "data" / "machines" / "machines.json"


def machines() -> dict[str, dict[str, Any]]:
    """Recording of every machine in machines.json, by id."""
    build = {"linux": linux, "windows": windows, "macos": macos, "wsl2": wsl}
    entries = json.loads(SOURCE.read_text(encoding="utf-8"))["machines"]
    return {
        entry["id"]: build[entry["os"].removesuffix("-vm").removesuffix("-container")](entry) for entry in entries
    }


@functools.cache
def reports() -> MappingProxyType[str, Machine]:
    """What is found on each of them, by id; looked for once, since nothing in it can be changed."""
    return MappingProxyType(
        {name: recorded_report(RecordedHost(recording)) for name, recording in machines().items()}
    )

"""Recordings of the machines in tests/data/machines/machines.json: files in the layout of each system.

The JSON has values from real machines. This module lays them out like sysfs, procfs, registry and sysctl, so that
the normal probes can read them. If a source lacks a value that the probes need (such as the core count of a named
CPU), the product's published value is used.
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
    """The recording of every machine in machines.json, by id."""
    build = {"linux": linux, "windows": windows, "macos": macos, "wsl2": wsl}
    entries = json.loads(SOURCE.read_text(encoding="utf-8"))["machines"]
    return {
        entry["id"]: build[entry["os"].removesuffix("-vm").removesuffix("-container")](entry) for entry in entries
    }


@functools.cache
def reports() -> MappingProxyType[str, Machine]:
    """The device report of every machine, by id; cached, because it is immutable."""
    return MappingProxyType(
        {name: recorded_report(RecordedHost(recording)) for name, recording in machines().items()}
    )

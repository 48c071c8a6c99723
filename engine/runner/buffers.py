"""What llama.cpp says it allocated, out of the log a runner writes to stderr."""

import re
from collections.abc import Mapping

MIB = 1 << 20
BUFFER = re.compile(r"([A-Za-z0-9_]+) +(model|KV|RS|compute|output) buffer size = +([0-9.]+) MiB")
# Of these only the last line of a device counts: they are reserved again when the graph changes.
REPLACED = ("compute", "output")


class BufferLog:
    """Bytes by backend buffer (`CPU_Mapped`, `CPU_REPACK`, `Vulkan0`), gathered line by line."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], int] = {}

    def read(self, line: str) -> None:
        """Take note of one line of the log."""
        found = BUFFER.search(line)
        if found is None:
            return
        key, size = (found[1], found[2]), round(float(found[3]) * MIB)
        self._kinds[key] = size if found[2] in REPLACED else self._kinds.get(key, 0) + size

    def bytes(self) -> Mapping[str, int]:
        """Bytes of each buffer so far."""
        totals: dict[str, int] = {}
        for (buffer, _), size in self._kinds.items():
            totals[buffer] = totals.get(buffer, 0) + size
        return totals

"""Parses llama.cpp's buffer allocations from a runner's stderr."""

import re
from collections.abc import Mapping

MIB = 1 << 20
BUFFER = re.compile(r"([A-Za-z0-9_]+) +(model|KV|RS|compute|output) buffer size = +([0-9.]+) MiB")
# Only the last line per device counts for these kinds: they are allocated again when the graph changes.
REPLACED = ("compute", "output")


class BufferLog:
    """Bytes per backend buffer (`CPU_Mapped`, `CPU_REPACK`, `Vulkan0`), collected line by line."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], int] = {}

    def read(self, line: str) -> None:
        match = BUFFER.search(line)
        if match is None:
            return
        key, size = (match[1], match[2]), round(float(match[3]) * MIB)
        self._kinds[key] = size if match[2] in REPLACED else self._kinds.get(key, 0) + size

    def bytes(self) -> Mapping[str, int]:
        """Return the bytes of each buffer so far."""
        totals: dict[str, int] = {}
        for (buffer, _), size in self._kinds.items():
            totals[buffer] = totals.get(buffer, 0) + size
        return totals

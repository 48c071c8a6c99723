"""Parses llama.cpp's buffer allocations from a runner's stderr."""

import re
from collections.abc import Mapping

MIB = 1 << 20
BUFFER = re.compile(r"([A-Za-z0-9_]+) +(model|KV|RS|compute|output) buffer size = +([0-9.]+) MiB")
# Written after the buffers of one cache: "llama_kv_cache: size = 448.00 MiB (  4096 cells,  28 layers, ..."
CELLS = re.compile(r"_kv_cache: +size = +[0-9.]+ MiB +\( *(\d{1,12}) cells")
# Only the last line per device counts for these kinds: they are allocated again when the graph changes.
REPLACED = ("compute", "output")


class BufferLog:
    """Bytes per backend buffer (`CPU_Mapped`, `CPU_REPACK`, `Vulkan0`), collected line by line."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], int] = {}
        self._caches: list[tuple[str, int, int]] = []  # buffer, bytes, cells (0: not known yet)

    def read(self, line: str) -> None:
        if cells := CELLS.search(line):
            self._caches = [(buffer, size, count or int(cells[1])) for buffer, size, count in self._caches]
        match = BUFFER.search(line)
        if match is None:
            return
        key, size = (match[1], match[2]), round(float(match[3]) * MIB)
        if match[2] == "KV":
            self._caches.append((match[1], size, 0))
        else:
            self._kinds[key] = size if match[2] in REPLACED else self._kinds.get(key, 0) + size

    def bytes(self, granted_cells: int = 0) -> Mapping[str, int]:
        """Return the bytes of each buffer so far.

        granted_cells: cells of a cache that may be used (0: all). On a CPU more are reserved, which use no memory.
        """
        totals: dict[str, int] = {}
        for (buffer, _), size in self._kinds.items():
            totals[buffer] = totals.get(buffer, 0) + size
        for buffer, size, cells in self._caches:
            reserves = buffer.startswith("CPU") and 0 < granted_cells < cells
            totals[buffer] = totals.get(buffer, 0) + (size * granted_cells // cells if reserves else size)
        return totals

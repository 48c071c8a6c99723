"""The server's ends of a runner's pipes, and llama.cpp's buffer allocations from its stderr."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

# Maximum bytes of a line of stderr; asyncio's own limit.
LINE_BYTES: Final = 1 << 16


class Pipes(asyncio.subprocess.SubprocessStreamProtocol):
    """A child's pipes. Its stdout skips asyncio's `StreamReader`, which only reports the end of the pipe.

    A reader wakes a task for every token, after two more rounds of the event loop. That took a fifth of the CPU
    time that a token costs the server.
    """

    def __init__(self) -> None:
        super().__init__(LINE_BYTES, asyncio.get_running_loop())
        self._early: list[bytes] = []
        self.received: Callable[[bytes], None] = self._early.append

    async def start(self, command: Sequence[str], env: Mapping[str, str]) -> asyncio.subprocess.Process:
        """Start the child with a pipe for each of its streams."""
        loop, pipe = asyncio.get_running_loop(), asyncio.subprocess.PIPE
        transport, _ = await loop.subprocess_exec(
            lambda: self, *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env
        )
        return asyncio.subprocess.Process(transport, self, loop)

    def deliver(self, received: Callable[[bytes], None]) -> None:
        """Call `received` with all bytes of stdout, including those that are already here."""
        self.received = received
        for data in self._early:
            received(data)

    def connection_made(self, transport: Any) -> None:
        """Take over stdout from asyncio."""
        super().connection_made(transport)
        output = transport.get_pipe_transport(1)
        output.set_protocol(_Output(self, output.get_protocol()))

    def pipe_data_received(self, fd: int, data: Any) -> None:
        """Pass on bytes that asyncio read before `connection_made`, and those of stderr."""
        if fd == 1:
            self.received(data)
        else:
            super().pipe_data_received(fd, data)


class _Output(asyncio.Protocol):
    """Passes a child's stdout to its receiver, and the end of it to asyncio."""

    def __init__(self, pipes: Pipes, watching: Any) -> None:
        self._pipes = pipes
        self._watching = watching

    def data_received(self, data: bytes) -> None:
        self._pipes.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watching.connection_lost(exc)


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

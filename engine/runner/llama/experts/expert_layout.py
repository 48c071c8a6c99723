"""Locates the experts of a loaded model in its file and in this process's mapping of it."""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.runner.expert_tensors import PAGE, stacks
from quantize.files.gguf_split import GgufModel

# A shared read-only file mapping, as llama.cpp creates it: addresses, offset, inode, path.
_MAP: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r--s ([0-9a-f]+) [0-9a-f:]+ (\d+)\s+(.*)", re.ASCII)
# Bytes of each tensor that are compared with the file's.
_PROOF_BYTES: Final = 64


class NotMapped(Exception):
    """The file's experts are not at the expected place; the message says what is missing."""


class FileChanged(Exception):
    """The file has changed since the load; the message says how."""


@dataclass(frozen=True, slots=True)
class Span:
    """Whole pages of a file with one matrix, `[begin, end)`, and the inner ones that no other matrix touches.

    `address` is the address of `begin` in memory, `needed_end` the last byte of the matrix: the file may end there.
    """

    part: int
    begin: int
    end: int
    inner_begin: int
    inner_end: int
    address: int
    needed_end: int

    @property
    def edges(self) -> tuple[int, ...]:
        """Offsets of the first and last pages if they are shared with a neighbour."""
        offsets = [*range(self.begin, self.inner_begin, PAGE), *range(self.inner_end, self.end, PAGE)]
        return tuple(dict.fromkeys(offsets))

    def at(self, offset: int) -> int:
        """Return the address of a byte of the file."""
        return self.address + offset - self.begin


@dataclass(frozen=True, slots=True)
class Stack:
    """One matrix per expert, contiguous: in part `part` of the file from `offset` on, mapped at `address`."""

    part: int
    offset: int
    expert_bytes: int
    address: int

    def span(self, expert: int) -> Span:
        """Return the pages of one expert's matrix."""
        start = self.offset + expert * self.expert_bytes
        stop = start + self.expert_bytes
        begin, end = start - start % PAGE, stop + -stop % PAGE
        inner_begin, inner_end = start + -start % PAGE, stop - stop % PAGE
        if inner_end < inner_begin:  # within one page
            inner_begin = inner_end = end
        return Span(self.part, begin, end, inner_begin, inner_end, self.address + begin - self.offset, stop)


class Parts:
    """The open files of a model: opened normally, and with direct I/O if the file system supports it."""

    def __init__(self, model: GgufModel) -> None:
        """Open the files. Raises: OSError."""
        self.plain: list[int] = []
        self.direct: list[int] = []
        self.past_cache = True
        try:
            for path in model.paths:
                self.plain.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                self.direct.append(self._open_direct(path))
        except OSError:
            self.close()
            raise
        self._states = [_state(fd) for fd in self.plain]

    def _open_direct(self, path: str) -> int:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError:  # a file system without direct I/O
            self.past_cache = False
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def check(self) -> None:
        """Raises: FileChanged: the size or date of a part has changed since the load."""
        for number, (descriptor, before) in enumerate(zip(self.plain, self._states, strict=True), 1):
            now = _state(descriptor)
            if now != before:
                which = f"part {number} of the model's file" if len(self.plain) > 1 else "the model's file"
                what = "is shorter" if now[0] < before[0] else "was changed"
                raise FileChanged(f"{which} {what} since it was loaded; load it again")

    def forget(self, part: int, offset: int, size: int) -> None:
        """Let the kernel drop these pages of the file from the page cache."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(self.plain[part], offset, size, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        for descriptor in (*self.plain, *self.direct):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.plain, self.direct = [], []


def _state(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def find(model: GgufModel, parts: Parts, experts: int, trunk: int) -> dict[int, tuple[Stack, ...]]:
    """Return layer below `trunk` → its tensors, whose first bytes are compared with the file. Linux only.

    Raises: NotMapped: the file is not mapped, or its header has no supported experts.
    """
    numbers = {tensor.name: number for number, part in enumerate(model.parts) for tensor in part.tensors}
    by_layer = stacks([tensor for _, tensor in model.tensors()], experts)
    if not by_layer:
        raise NotMapped("its header names no stacks of experts that are understood here")
    mappings = list(_mappings(model, parts))
    layers = {}
    for layer, tensors in by_layer.items():
        if layer >= trunk:
            continue  # MTP heads, which are not loaded
        placed = []
        for tensor in tensors:
            part = numbers[tensor.name]
            address = _address(mappings, part, tensor.offset, tensor.nbytes)
            if address is None:
                raise NotMapped(f"{tensor.name} is not mapped from the file")
            placed.append(Stack(part, tensor.offset, tensor.nbytes // experts, address))
        layers[layer] = tuple(placed)
    _prove(layers, parts)
    return layers


def _mappings(model: GgufModel, parts: Parts) -> Iterator[tuple[int, int, int, int]]:
    """Yield part, address, file offset and length of this process's mappings of the model's files."""
    inodes = {os.fstat(descriptor).st_ino: number for number, descriptor in enumerate(parts.plain)}
    names = {os.path.realpath(path): number for number, path in enumerate(model.paths)}
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        match = _MAP.fullmatch(line)
        if match is None:
            continue
        # A layered file system may report different inodes here, so the name counts too.
        number = inodes.get(int(match[4]), names.get(match[5]))
        if number is not None:
            begin, end, offset = (int(match[n], 16) for n in (1, 2, 3))
            yield number, begin, offset, end - begin


def _address(mappings: list[tuple[int, int, int, int]], part: int, offset: int, size: int) -> int | None:
    for number, begin, at, length in mappings:
        if number == part and at <= offset and offset + size <= at + length:
            return begin + offset - at
    return None


def _prove(layers: dict[int, tuple[Stack, ...]], parts: Parts) -> None:
    import ctypes

    for layer, placed in layers.items():
        for stack in placed:
            size = min(_PROOF_BYTES, stack.expert_bytes)
            if ctypes.string_at(stack.address, size) != os.pread(parts.plain[stack.part], size, stack.offset):
                raise NotMapped(f"what is mapped of the experts of layer {layer} is not what the file has there")

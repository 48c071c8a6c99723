"""Clears and reserves caches in main memory without touching them (Linux).

llama.cpp clears a new cache by writing zeros. That takes a second per 1 to 2 GB and makes all of it resident, even
if little is ever used. Memory that is returned to the system reads as zeros and uses no RAM until it is written
again, so the CPU's buffers are cleared that way here. Measured: with 250 million parameters and 65,536 tokens a
runner had 351 MiB instead of 1,313 after a load, which took 0.4 s of CPU time instead of 0.8 s; with 8,192 tokens
352 MiB and 0.4 s.

So a context can have more cells than requests may use, and grows by using more of them: docs/adr/0031.
"""

import contextlib
import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

# Maximum number of cells that a context reserves in order to grow. llama.cpp uses 52 bytes for each, used or not
# (llama-kv-cells.h), and looks at all of them when it truncates a sequence.
RESERVED_CELLS: Final = 262_144
# Below this, writing zeros takes some hundredths of a second, and page faults would come during a response.
LEAST_BYTES: Final = 64 << 20
# From asm-generic/mman-common.h.
MADV_DONTNEED: Final = 4
MADV_NOHUGEPAGE: Final = 15
OVERCOMMIT: Final = Path("/proc/sys/vm/overcommit_memory")
# Function pointers at the start of ggml's buffer type and buffer: every version has at least this many.
_TYPE_SLOTS: Final = 6
_BUFFER_SLOTS: Final = 11
_PROBE_BYTES: Final = 64
_ALLOC: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CLEAR: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint8)
# Callbacks of ggml must live as long as the process.
_callbacks: list[Any] = []
# Additional advice to the kernel about the buffers' memory while a context with reserved cells is created.
_sparse: list[tuple[int, ...]] = []


@contextlib.contextmanager
def sparse_buffers(*, small_pages: bool) -> Iterator[None]:
    """Leave small buffers untouched, too: most of each is unused for now. `small_pages`: without huge pages."""
    _sparse.append((MADV_NOHUGEPAGE,) if small_pages else ())
    try:
        yield
    finally:
        _sparse.pop()


def may_reserve() -> bool:
    """Whether unused memory costs nothing here: it does if the system counts it (vm.overcommit_memory)."""
    try:
        return stays_untouched() and OVERCOMMIT.read_text().strip() != "2"
    except OSError:
        return False


def stays_untouched() -> bool:
    """Whether this process's CPU buffers are cleared without touching them."""
    return bool(_callbacks)


def leave_untouched(lib: Any) -> bool:
    """Clear this process's CPU buffers by returning their memory from now on; False if that is not possible.

    `lib` has ggml's functions. The positions of the two functions in ggml's tables are found by calling them.
    """
    if stays_untouched() or sys.platform != "linux":
        return stays_untouched()
    _declare(lib)
    kind = lib.ggml_backend_cpu_buffer_type()
    buffer = lib.ggml_backend_buft_alloc_buffer(kind, _PROBE_BYTES)
    if not buffer:
        return False
    clears = _slot(buffer, _BUFFER_SLOTS, _CLEAR, lambda: lib.ggml_backend_buffer_clear(buffer, 0))
    lib.ggml_backend_buffer_free(buffer)

    def allocate() -> None:
        probe = lib.ggml_backend_buft_alloc_buffer(kind, _PROBE_BYTES)
        if probe:
            lib.ggml_backend_buffer_free(probe)

    allocates = _slot(kind, _TYPE_SLOTS, _ALLOC, allocate)
    if clears is None or allocates is None:
        return False
    _replace(lib, kind, allocates, clears)
    return True


def _replace(lib: Any, kind: int, allocates: int, clears: int) -> None:
    """Install the replacement functions for allocating and clearing buffers of this kind."""
    table = _table(kind, _TYPE_SLOTS)
    original = _ALLOC(table[allocates])
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def clear(cleared: int, value: int) -> None:
        base, size = lib.ggml_backend_buffer_get_base(cleared), lib.ggml_backend_buffer_get_size(cleared)
        begin, end = base + -base % mmap.PAGESIZE, (base + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if value or begin >= end or madvise(begin, end - begin, MADV_DONTNEED):
            ctypes.memset(base, value, size)
            return
        for advice in _sparse[-1] if _sparse else ():
            madvise(begin, end - begin, advice)
        ctypes.memset(base, 0, begin - base)
        ctypes.memset(end, 0, base + size - end)

    def alloc(of: int, size: int) -> int | None:
        buffer: int | None = original(of, size)
        if buffer and (size >= LEAST_BYTES or _sparse):
            _table(buffer, _BUFFER_SLOTS)[clears] = ctypes.cast(own_clear, ctypes.c_void_p).value
        return buffer

    own_clear, own_alloc = _CLEAR(clear), _ALLOC(alloc)
    _callbacks.extend((own_clear, own_alloc, original))
    table[allocates] = ctypes.cast(own_alloc, ctypes.c_void_p).value


def _declare(lib: Any) -> None:
    for name, result, arguments in (
        ("ggml_backend_cpu_buffer_type", ctypes.c_void_p, ()),
        ("ggml_backend_buft_alloc_buffer", ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)),
        ("ggml_backend_buffer_clear", None, (ctypes.c_void_p, ctypes.c_uint8)),
        ("ggml_backend_buffer_free", None, (ctypes.c_void_p,)),
        ("ggml_backend_buffer_get_base", ctypes.c_void_p, (ctypes.c_void_p,)),
        ("ggml_backend_buffer_get_size", ctypes.c_size_t, (ctypes.c_void_p,)),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def _table(address: int, slots: int) -> Any:
    return (ctypes.c_void_p * slots).from_address(address)


def _slot(address: int, slots: int, kind: Any, call: Any) -> int | None:
    """Return the slot of the table at `address` whose function `call` calls, or None.

    Each slot in turn is replaced by a probe during one call.
    """
    table = _table(address, slots)
    for slot in range(slots):
        original = table[slot]
        called: list[int] = []

        def instead(first: int, second: int, original: int = original, called: list[int] = called) -> int | None:
            called.append(first)
            return kind(original)(first, second)  # type: ignore[no-any-return]

        probe = kind(instead)
        table[slot] = ctypes.cast(probe, ctypes.c_void_p).value
        try:
            call()
        finally:
            table[slot] = original
        if called:
            return slot
    return None

"""Large caches in main memory are emptied without being touched (Linux).

llama.cpp clears a new cache by writing zeros, which takes a second for each GB or two and makes all of it resident,
however little of it is ever used. Memory that is given back to the system reads as zeros and takes no room until it
is written again, so the buffers of the CPU are cleared that way here.
Measured: with 250 million parameters and 65,536 tokens a runner had 351 MiB instead of 1,313 after a load, which
took 0.4 s of processor time instead of 0.8 s; with 8,192 tokens 352 MiB and 0.4 s.
"""

import ctypes
import mmap
import sys
from typing import Any, Final

# Below it writing zeros takes some hundredths of a second, and first touches would come while an answer waits.
LEAST_BYTES: Final = 64 << 20
# Of asm-generic/mman-common.h.
MADV_DONTNEED: Final = 4
# Function pointers at the beginning of ggml's buffer type and buffer: at least so many in every version.
_TYPE_SLOTS: Final = 6
_BUFFER_SLOTS: Final = 11
_PROBE_BYTES: Final = 64
_ALLOC: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CLEAR: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint8)
# What ggml calls must stay as long as the process.
_callbacks: list[Any] = []


def leave_untouched(lib: Any) -> bool:
    """Clear the CPU's buffers of this process that way from now on; False where that is not possible.

    `lib` has ggml's functions. Where in ggml's tables the two functions stand is found by calling them.
    """
    if _callbacks or sys.platform != "linux":
        return bool(_callbacks)
    _declare(lib)
    kind = lib.ggml_backend_cpu_buffer_type()
    buffer = lib.ggml_backend_buft_alloc_buffer(kind, _PROBE_BYTES)
    if not buffer:
        return False
    clears = _slot(buffer, _BUFFER_SLOTS, _CLEAR, lambda: lib.ggml_backend_buffer_clear(buffer, 0))
    lib.ggml_backend_buffer_free(buffer)

    def allocate() -> None:
        made = lib.ggml_backend_buft_alloc_buffer(kind, _PROBE_BYTES)
        if made:
            lib.ggml_backend_buffer_free(made)

    allocates = _slot(kind, _TYPE_SLOTS, _ALLOC, allocate)
    if clears is None or allocates is None:
        return False
    _replace(lib, kind, allocates, clears)
    return True


def _replace(lib: Any, kind: int, allocates: int, clears: int) -> None:
    """Let buffers of this kind be made with our function for clearing."""
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
        ctypes.memset(base, 0, begin - base)
        ctypes.memset(end, 0, base + size - end)

    def alloc(of: int, size: int) -> int | None:
        made: int | None = original(of, size)
        if made and size >= LEAST_BYTES:
            _table(made, _BUFFER_SLOTS)[clears] = ctypes.cast(own_clear, ctypes.c_void_p).value
        return made

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
    """The slot of the table at `address` whose function `call` has called; None: none of them.

    The function of another slot stays out of the way for that one call, in which it is not used.
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

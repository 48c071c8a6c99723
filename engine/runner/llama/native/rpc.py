"""llama.cpp's RPC backend: uses devices of workers on other machines, and serves this machine's devices.

RPC has neither keys nor encryption, so both ends stay on loopback; machines are connected by a tunnel (ssh -L).
"""

import contextlib
import ctypes
import re
from collections.abc import Sequence
from typing import Any, Final

from engine.runner.llama.native.llama_api import ggml

BACKEND: Final = b"RPC"
LOOPBACK: Final = "127.0.0.1"
# A worker behind a tunnel replies within this time, or is reported as absent.
CONNECT_S: Final = 5.0
# ggml-backend.h: enum ggml_backend_dev_type.
_CPU: Final = 0
_GPUS: Final = frozenset({1, 2})
_ENDPOINT: Final = re.compile(r"127\.0\.0\.1:(?P<port>\d{1,5})")
_MAX_PORT: Final = 65535


class NoWorker(Exception):
    """A worker cannot be used; the message says which and why."""


def add_workers(api: Any, endpoints: Sequence[str]) -> None:
    """Make the devices of workers usable, as RPC0, RPC1, … in their order. Raises: NoWorker."""
    for endpoint in endpoints:
        _check(endpoint)
    lib = ggml(api)
    add = _function(lib, b"ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    lib.ggml_backend_register.argtypes = [ctypes.c_void_p]
    for endpoint in endpoints:
        registry = add(endpoint.encode())
        if not registry:
            raise NoWorker(f"the worker at {endpoint} speaks another version of llama.cpp's RPC, or is none")
        lib.ggml_backend_register(registry)


def serve(api: Any, port: int, threads: int) -> None:
    """Serve this machine's GPUs, or else its CPU, until the process ends. Raises: NoWorker: it failed."""
    lib = ggml(api)
    chosen = _served(lib)
    devices = (ctypes.c_void_p * len(chosen))(*chosen)
    counts = (ctypes.c_size_t, ctypes.c_size_t)
    start = _function(
        lib, b"ggml_backend_rpc_start_server", None, ctypes.c_char_p, ctypes.c_char_p, *counts, ctypes.c_void_p
    )
    start(f"{LOOPBACK}:{port}".encode(), None, threads, len(chosen), devices)
    raise NoWorker(f"llama.cpp could not listen on port {port}; another program may have it")


def describe(api: Any) -> list[dict[str, Any]]:
    """Return the devices that this worker serves: name, description, kind, and bytes as the backend reports."""
    lib = ggml(api)
    for name in ("ggml_backend_dev_name", "ggml_backend_dev_description"):
        getattr(lib, name).restype = ctypes.c_char_p
        getattr(lib, name).argtypes = [ctypes.c_void_p]
    lib.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, *([ctypes.POINTER(ctypes.c_size_t)] * 2)]
    lib.ggml_backend_dev_memory.restype = None
    described = []
    for device in _served(lib):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        lib.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        described.append(
            {
                "name": lib.ggml_backend_dev_name(device).decode("utf-8", "replace"),
                "description": lib.ggml_backend_dev_description(device).decode("utf-8", "replace"),
                "kind": "gpu" if lib.ggml_backend_dev_type(device) in _GPUS else "cpu",
                "free_bytes": free.value,
                "total_bytes": total.value,
            }
        )
    return described


def _served(lib: Any) -> list[int]:
    lib.ggml_backend_dev_count.restype = ctypes.c_size_t
    lib.ggml_backend_dev_get.restype = ctypes.c_void_p
    lib.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    lib.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    devices = [lib.ggml_backend_dev_get(i) for i in range(lib.ggml_backend_dev_count())]
    kinds = [(device, lib.ggml_backend_dev_type(device)) for device in devices]
    return [device for device, kind in kinds if kind in _GPUS] or [d for d, kind in kinds if kind == _CPU]


def _check(endpoint: str) -> None:
    """Check that a worker is reachable: a missing one would end this process in the middle of a load."""
    import socket

    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or not 0 < int(match["port"]) <= _MAX_PORT:
        raise NoWorker(f"rpc: {endpoint!r} is not {LOOPBACK}:PORT; reach other machines through a tunnel (ssh -L)")
    try:
        with contextlib.closing(socket.create_connection((LOOPBACK, int(match["port"])), timeout=CONNECT_S)):
            pass
    except OSError as error:
        why = error.strerror or "no answer"
        hint = "is the RPC server running there, and the tunnel up?"
        raise NoWorker(f"no worker answers at {endpoint} ({why}): {hint}") from error


def _function(lib: Any, name: bytes, returns: Any, *takes: Any) -> Any:
    """Return a function of the RPC library, found through its registry."""
    lib.ggml_backend_reg_by_name.restype = ctypes.c_void_p
    lib.ggml_backend_reg_by_name.argtypes = [ctypes.c_char_p]
    lib.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
    lib.ggml_backend_reg_get_proc_address.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    registry = lib.ggml_backend_reg_by_name(BACKEND)
    address = lib.ggml_backend_reg_get_proc_address(registry, name) if registry else None
    if not address:
        raise NoWorker("this build of llama.cpp has no RPC library (libggml-rpc)")
    return ctypes.CFUNCTYPE(returns, *takes)(address)

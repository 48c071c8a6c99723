"""Child process: load one ggml backend library, list its devices, open each, print JSON. It may crash.

Usage: python -m devices.backends.ggml_child FOLDER LIBRARY... Several libraries are variants of one backend:
the one with the highest score on this CPU is loaded, as ggml itself does.
"""

import ctypes
import re
import sys
from pathlib import Path
from typing import Any

from devices.backends.libraries import best_variant, ggml_library
from devices.backends.symbols import ggml_functions
from devices.child_command import answer_with

# Lines that Vulkan and Metal log about a device at startup. Source: ggml-vulkan.cpp, ggml_vk_print_gpu_info;
# ggml-metal-device.m.
VULKAN_LINE = re.compile(r"ggml_vulkan: (\d+) = .*\| int dot: (\d) \| matrix cores: (\S+)")
METAL_LINE = re.compile(r"has tensor\s*= (true|false)")
DEVICE_KINDS = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel"}
TRIAL_BYTES = 1 << 20


class DeviceProps(ctypes.Structure):
    """The fields of ggml_backend_dev_props up to the device id. Source: ggml-backend.h.

    The capabilities after them grew between releases, so there is space for them, but they are not read.
    """

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", ctypes.c_char * 256),
    )


class Feature(ctypes.Structure):
    """One entry of a backend's feature list; a null name ends it."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p))


def features(ggml: Any, registry: ctypes.c_void_p) -> list[str]:
    """Instruction sets and options that the loaded library was built with and uses."""
    ggml.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
    address = ggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_get_features")
    if not address:
        return []
    listed = ctypes.CFUNCTYPE(ctypes.POINTER(Feature), ctypes.c_void_p)(address)(registry)
    names = []
    for index in range(64):
        if not listed[index].name:
            break
        if listed[index].value not in (None, b"0"):
            names.append(listed[index].name.decode("utf-8", "replace"))
    return names


class BackendLog:
    """Log of the backends during startup."""

    def __init__(self, ggml: Any) -> None:
        self._text: list[str] = []
        # ctypes calls it until the process ends, so it must not be garbage-collected.
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(self._add)
        ggml.ggml_log_set(self._callback, None)

    def _add(self, _level: int, text: bytes | None, _user: int | None) -> None:
        self._text.append((text or b"").decode("utf-8", "replace"))

    def units(self, index: int) -> dict[str, bool | None]:
        """Whether the device with this number uses matrix units and integer dot products; None if unknown."""
        return reported_units("".join(self._text), index)


def reported_units(log: str, index: int) -> dict[str, bool | None]:
    """Matrix units and dot products of a device according to this log."""
    for match in VULKAN_LINE.finditer(log):
        if int(match[1]) == index:
            return {"matrix_units": match[3] != "none", "int_dot": match[2] == "1"}
    metal = METAL_LINE.search(log)
    return {"matrix_units": metal[1] == "true" if metal else None, "int_dot": None}


def open_device(ggml: Any, device: ctypes.c_void_p) -> None:
    """Start the device, and allocate and free a small buffer: enumeration does not prove that the device works."""
    for name in ("ggml_backend_dev_init", "ggml_backend_dev_buffer_type", "ggml_backend_buft_alloc_buffer"):
        getattr(ggml, name).restype = ctypes.c_void_p
    backend = ggml.ggml_backend_dev_init(device, None)
    if not backend:
        raise OSError("the device could not be opened")
    kind = ctypes.c_void_p(ggml.ggml_backend_dev_buffer_type(device))
    buffer = ggml.ggml_backend_buft_alloc_buffer(kind, ctypes.c_size_t(TRIAL_BYTES))
    if not buffer:
        raise OSError("no memory could be taken on the device")
    ggml.ggml_backend_buffer_free(ctypes.c_void_p(buffer))
    ggml.ggml_backend_free(ctypes.c_void_p(backend))


def report(folder: Path, libraries: list[str]) -> dict[str, object]:
    """Load the backend and describe it."""
    ggml = ggml_functions(ctypes.CDLL(str(ggml_library(folder))), folder)
    ggml.ggml_backend_load.restype = ctypes.c_void_p
    ggml.ggml_backend_reg_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_reg_dev_count.restype = ctypes.c_size_t
    path = str(best_variant(tuple(map(Path, libraries))))
    log = BackendLog(ggml)
    pointer = ggml.ggml_backend_load(path.encode())
    if not pointer:
        ctypes.CDLL(path)  # raises with the name of the missing library or symbol
        raise OSError("the library refused to load: it found nothing it can use")
    registry = ctypes.c_void_p(pointer)
    devices = []
    for index in range(min(ggml.ggml_backend_reg_dev_count(registry), 64)):
        device = ctypes.c_void_p(ggml.ggml_backend_reg_dev_get(registry, ctypes.c_size_t(index)))
        props = DeviceProps()
        ggml.ggml_backend_dev_get_props(device, ctypes.byref(props))
        open_device(ggml, device)
        devices.append(
            {
                "name": (props.name or b"").decode("utf-8", "replace"),
                "description": (props.description or b"").decode("utf-8", "replace"),
                "kind": DEVICE_KINDS.get(props.type, "accel"),
                "total_bytes": props.memory_total,
                "free_bytes": props.memory_free,
                "device_id": props.device_id.decode("utf-8", "replace").lower() if props.device_id else None,
                **log.units(index),
            }
        )
    ggml.ggml_version.restype = ctypes.c_char_p
    return {
        "library": Path(path).name,
        "version": (ggml.ggml_version() or b"").decode(),
        "features": features(ggml, registry),
        "devices": devices,
    }


def main() -> int:
    """Print the report, or the error."""
    return answer_with(lambda: report(Path(sys.argv[1]), sys.argv[2:]), OSError, AttributeError)


if __name__ == "__main__":
    sys.exit(main())

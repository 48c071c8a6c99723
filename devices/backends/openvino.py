"""Intel's OpenVINO: its devices under Tessera's names, and the settings of ggml's backend for each.

ggml's backend uses one device per process, named by an environment variable. If that device is missing, it uses the
CPU without an error. So the runtime itself is queried first for its devices, through its C interface.
"""

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from devices.types import BackendDevice

BACKEND: Final = "openvino"
PREFIX: Final = "openvino:"
# ggml's own name of the one device.
GGML_DEVICE: Final = "OPENVINO0"
NPU: Final = "openvino:NPU"
_DEVICE_VARIABLE: Final = "GGML_OPENVINO_DEVICE"
_MOST_DEVICES: Final = 16
# A compiled model is as large as its weights.
CACHE_BYTES: Final = 8 << 30


class OpenVinoFailed(OSError):
    """The runtime does not load, or a call fails; the message names the call."""


class _Devices(ctypes.Structure):
    """ov_available_devices_t. Source: openvino/c/ov_core.h, 2026.4."""

    _fields_ = (("devices", ctypes.POINTER(ctypes.c_char_p)), ("size", ctypes.c_size_t))


def target_of(devices: Sequence[str]) -> str:
    """OpenVINO's name (CPU, GPU, GPU.1, NPU) of the first OpenVINO device among these; else empty."""
    return next((name.removeprefix(PREFIX) for name in devices if name.startswith(PREFIX)), "")


def environment(target: str, cache: Path | None) -> Mapping[str, str]:
    """Variables that ggml's backend reads when it is loaded: the device, and a folder for compiled models.

    Compiled models are cached by weights, graph, device and OpenVINO's version; for an NPU by OpenVINO's own key.
    """
    variables = {_DEVICE_VARIABLE: target, "GGML_OPENVINO_STATEFUL_EXECUTION": "0"}
    if cache is not None:
        variables["GGML_OPENVINO_CACHE_DIR"] = str(cache)
        if target != "NPU":
            variables["GGML_OPENVINO_COMPILED_MODEL_CACHE_DIR"] = str(cache)
    return variables


def trim(cache: Path, most_bytes: int = CACHE_BYTES) -> None:
    """Remove the oldest compiled models until the folder is at most this large."""
    with contextlib.suppress(OSError):
        files = sorted(
            ((p.stat().st_mtime, p.stat().st_size, p) for p in cache.iterdir() if p.is_file()), reverse=True
        )
        total = 0
        for _, size, path in files:
            total += size
            if total > most_bytes:
                path.unlink(missing_ok=True)


def offered(folder: Path) -> "tuple[BackendDevice, ...]":
    """The devices that the runtime in a pack's `folder` offers here. Loads the runtime; call it in a child.

    Raises: OpenVinoFailed.
    """
    library = next((p for name in ("libopenvino_c.so*", "openvino_c.dll") for p in sorted(folder.glob(name))), None)
    if library is None:
        raise OpenVinoFailed("its runtime (libopenvino_c) is not in the pack")
    api = ctypes.CDLL(str(library))
    core = ctypes.c_void_p()
    if api.ov_core_create(ctypes.byref(core)) != 0:
        raise OpenVinoFailed("OpenVINO could not be started")
    try:
        listed = _Devices()
        if api.ov_core_get_available_devices(core, ctypes.byref(listed)) != 0:
            raise OpenVinoFailed("OpenVINO did not list its devices")
        names = [(listed.devices[i] or b"").decode() for i in range(min(listed.size, _MOST_DEVICES))]
        return tuple(_described(api, core, name) for name in names)
    finally:
        api.ov_core_free(core)


def _described(api: ctypes.CDLL, core: ctypes.c_void_p, name: str) -> "BackendDevice":
    from devices.types import BackendDevice

    base = name.partition(".")[0]
    integrated = "integrated" in _property(api, core, name, "DEVICE_TYPE").lower()
    gpu = "igpu" if integrated else "gpu"
    size = _property(api, core, name, f"{base}_DEVICE_TOTAL_MEM_SIZE") if base in {"GPU", "NPU"} else ""
    total = int(size) if size.isdigit() else 0
    return BackendDevice(
        name=f"{PREFIX}{name}",
        description=_property(api, core, name, "FULL_DEVICE_NAME") or name,
        kind="cpu" if base == "CPU" else "npu" if base == "NPU" else gpu,  # type: ignore[arg-type]
        total_bytes=total,
        free_bytes=total,
        device_id=None,
    )


def _property(api: ctypes.CDLL, core: ctypes.c_void_p, device: str, key: str) -> str:
    """A property as text; empty if the device has no such property."""
    value = ctypes.c_char_p()
    if api.ov_core_get_property(core, device.encode(), key.encode(), ctypes.byref(value)) != 0:
        return ""
    return (value.value or b"").decode("utf-8", "replace").strip()

"""What a measurement depends on, as short keys: the model's tensors; the machine, its drivers and kernels."""

import hashlib
from importlib import metadata

from devices.backends import cpu_kernels
from devices.backends.libraries import built_libraries, library_folder
from devices.llama_cpp_versions.folder import chosen_version
from devices.types import Machine
from engine.placement.shape import ModelShape


def shape_key(shape: ModelShape) -> str:
    """The same for every file with these tensors, types and architecture, whatever its weights and its name."""
    tensors = sorted((t.name, tuple(t.shape), t.ggml_type.name) for t in shape.tensors)
    facts = (shape.architecture, shape.heads, shape.attention, shape.sliding_window, tensors)
    return _digest(repr(facts))


def machine_key(machine: Machine) -> str:
    """The same until a processor, a GPU, its driver, the kernels or the installed memory change."""
    devices = [
        (d.id, d.kind, d.name, sorted(d.isa), d.cores.allowed_logical if d.cores else 0, d.driver_version)
        for d in machine.devices
    ]
    total = (machine.memory.installed_bytes or machine.memory.total_bytes or 0) >> 30
    return _digest(repr((machine.system, machine.arch, total, devices, build())))


def build() -> str:
    """Version of the kernels and which plugins there are."""
    plugins = sorted(built_libraries(library_folder()))
    named = (f"{p}{cpu_kernels.VERSION}" if p == cpu_kernels.BACKEND else p for p in plugins)
    return f"{llama_cpp_version()} {','.join(named)}"


def llama_cpp_version() -> str:
    """Version of llama-cpp-python that all models use; `none` where there is none."""
    return chosen_version() or shipped_version()


def shipped_version() -> str:
    """The version that came with this program; `none` where there is none."""
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return "none"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

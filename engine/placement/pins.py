"""The devices a model can be pinned to, and pins whose device is missing."""

import os

from devices.backends import openvino
from devices.backends.cpu_kernels import BACKEND as TILES
from devices.types import Finding, Machine
from engine.core.errors import InputFault
from engine.onnx.providers import ADAPTERS
from engine.remotes.registry import remote_of


def device_names(machine: Machine) -> set[str]:
    """Every name that pins a model to a device of this machine."""
    names: set[str] = set()
    for device in machine.devices:
        if device.kind == "remote":
            names |= {device.id, remote_of(device.id)}
            continue
        backends = {r.backend for r in device.runtimes if r.state == "usable"} | ({"cpu"} & {device.kind})
        names |= {r.device_name for r in device.runtimes if r.state == "usable" and r.backend == openvino.BACKEND}
        backends -= {TILES}  # additional kernels, not a place to run
        names |= {device.id, device.kind, *backends, *(f"{device.id}/{backend}" for backend in backends)}
    # A provider's own name: a plugin such as Qualcomm's emulator has no device in this list.
    here = (a for a in ADAPTERS.values() if not a.built_in and not a.problem(None, os.environ))
    return names | {name for a in here for name in (a.genai_name.lower(), a.provider)}


def check_pin(machine: Machine, device: str) -> None:
    """Raises: InputFault: this computer has no device with that name."""
    names = device_names(machine)
    if device.lower() not in {name.lower() for name in names}:
        raise InputFault(f"{device!r} is not a device here; use one of {', '.join(sorted(names))}.", "device")


def missing_pins(machine: Machine, pins: dict[str, str]) -> tuple[Finding, ...]:
    """A finding for each model whose pinned device is not usable here now; `pins`: model id to device."""
    names = {name.lower() for name in device_names(machine)}
    return tuple(
        Finding(
            "pin_gone",
            "warning",
            f"{model} is pinned to {device}, which is not usable here now",
            "Another device runs it until that one is back.",
            f"tessera chat {model} --device auto  (removes the pin)",
            model,
        )
        for model, device in sorted(pins.items())
        if device.lower() not in names
    )

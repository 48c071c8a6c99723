"""A pin survives the loss of its device; the owner is told, and how to remove it."""

import pytest
from msgspec.structs import replace

from engine.placement.model_settings import ModelSettingsStore
from engine.placement.pins import device_names, missing_pins
from tests.support.machines.machines import reports


def with_vulkan():
    """A recorded machine whose integrated GPU runs models with Vulkan."""
    return next(
        machine
        for machine in reports().values()
        if any(d.kind == "igpu" and any(r.backend == "vulkan" for r in d.runtimes) for d in machine.devices)
    )


def test_only_pins_whose_device_is_gone_are_told(tmp_path):
    store = ModelSettingsStore(tmp_path / "model_settings.json")
    store.change("writer", device="vulkan")
    store.change("coder", device="cpu")
    store.change("reader", n_ctx=512)
    assert store.pins() == {"writer": "vulkan", "coder": "cpu"}
    machine = with_vulkan()
    assert missing_pins(machine, store.pins()) == ()
    without = replace(machine, devices=tuple(d for d in machine.devices if d.kind == "cpu"))
    (finding,) = missing_pins(without, store.pins())
    assert finding.title == "writer is pinned to vulkan, which is not usable here now"
    assert "tessera chat writer --device auto" in finding.fix


@pytest.mark.parametrize("pin", ["VULKAN", "igpu", "cpu"])
def test_pins_are_compared_without_case(pin):
    assert missing_pins(with_vulkan(), {"model": pin}) == ()


def test_a_device_is_named_by_id_kind_backend_and_both():
    machine = with_vulkan()
    gpu = next(d for d in machine.devices if d.kind == "igpu")
    assert {gpu.id, "igpu", "vulkan", f"{gpu.id}/vulkan", "cpu"} <= device_names(machine)

"""How much of a model the GPU evaluates while it is measured and compared: what a load of it would get."""

from typing import Final

from devices.types import Machine
from engine.placement.placer import Placer
from engine.placement.resources import Resources
from engine.placement.shape import ModelShape
from engine.runner.protocol import LoadSettings

GPUS: Final = frozenset({"dgpu", "igpu"})  # kinds of device, as `devices.types` has them
_OWNER: Final = "measuring a model"
_WINDOW: Final = 512  # tokens evaluated at a time. Source: quantize.native.calibration, WINDOW
# A comparison holds the source, a file of ours and a stock mix at once: those two take a third of 16 bits each.
_AT_ONCE: Final = 1.7


def has_gpu(machine: Machine) -> bool:
    """Whether there is one, sound or not."""
    return any(d.kind in GPUS for d in machine.devices)


def layers_on_gpu(path: str, shape: ModelShape, resources: Resources) -> int:
    """The layers, the head counted as one; 0 where the processor is quicker, or no GPU was found sound."""
    machine = resources.machine.settled()
    if not has_gpu(machine):
        return 0
    settings = LoadSettings(
        path=path, n_ctx=_WINDOW, kv_cells=_WINDOW, n_parallel=1, n_batch=_WINDOW, n_ubatch=_WINDOW
    )
    placement = Placer(resources).judge_shape(_OWNER, shape, settings)
    device = machine.device(placement.device)
    if device is None or device.kind not in GPUS or placement.settings.remotes:
        return 0
    layers = max(0, placement.settings.n_gpu_layers)
    wanted = _AT_ONCE * placement.need.device_bytes(placement.device)
    free = resources.ledger.available(placement.device, machine)
    return layers if wanted <= free else int(layers * free / wanted)

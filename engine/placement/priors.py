"""What backends want and how a device's speed is expected before anything was measured on this machine."""

from typing import Final

import msgspec

from devices.backends.openvino import BACKEND as OPENVINO
from devices.types import Device
from engine.placement.chip_speeds import openvino_rates, rates
from quantize.ggml_types import GgmlType

NPU_LARGEST_PARAMETERS: Final = 4_000_000_000
# Pieces of a prompt where weights lie in RAM: each is copied to the GPU once a piece. Published: gpt-oss-120b on an
# RTX 3090 with experts on the processor reads 380 tokens/s in pieces of 512 and 1,113 in those of 2,048.
HOST_UBATCH: Final = 2048


class BackendPrior(msgspec.Struct, frozen=True):
    """`n_ubatch` suits its kernels; `head_widths`: it has fused attention for heads of so many values."""

    n_ubatch: int
    head_widths: frozenset[int] = frozenset()


_COMMON: Final = frozenset({64, 80, 96, 112, 128, 256})
# Source: ubatch: lhl/strix-halo-testing (RADV 1,024, ROCm 2,048). Widths: those of llama.cpp's fattn.cu that Vulkan
# and Metal have kernels for too; which SYCL and OpenCL have depends on the device.
BACKENDS: dict[str, BackendPrior] = {
    "cuda": BackendPrior(512, _COMMON),
    "metal": BackendPrior(512, _COMMON),
    "vulkan": BackendPrior(1024, _COMMON),
    "rocm": BackendPrior(2048, _COMMON),
    "sycl": BackendPrior(512),
    "openvino": BackendPrior(512),
    "opencl": BackendPrior(512),
    "cpu": BackendPrior(512),
}

# Weights that OpenVINO computes with as they are, for a rate that names no model.
_OPENVINO_TYPE: Final = next(t.name for t in GgmlType if t.traits.openvino == "native" and not t.traits.is_float)


def effective_gbs(device: Device, backend: str) -> float:
    """What decoding is expected to read a second on this device through this backend."""
    if backend == OPENVINO:
        return openvino_rates(device, _OPENVINO_TYPE, None).gbs
    return rates(device, backend).gbs

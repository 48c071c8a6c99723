"""How fast a device is before anything was measured on this machine."""

import msgspec

from devices.types import Device

# Share of the memory bandwidth that decoding reaches. Source: Strix Halo, llama-2-7B Q4_0: 213 of 256 GB/s on the
# GPU, 118 GB/s CPU read (lhl/strix-halo-testing); other machines are taken to be alike.
GPU_EFFICIENCY, CPU_EFFICIENCY = 0.85, 0.46
# Where no bandwidth is known: dual-channel DDR4-3200 and a mid-range card's GDDR6.
UNKNOWN_CPU_GBS, UNKNOWN_IGPU_GBS, UNKNOWN_DGPU_GBS = 51.2, 51.2, 256.0
# Operations for each byte of memory bandwidth in prefill. Source: Strix Halo, llama-2-7B Q4_0: 1,338
# tok/s, 18 TFLOPS at 256 GB/s, Qwen 27B Q8_0 15 (kyuz0's logs). Processors and cards of their own: published
# llama-bench figures differ by half, and only the order counts.
FLOP_PER_BYTE = {"cpu": 15.0, "npu": 15.0, "igpu": 60.0, "dgpu": 90.0}
# Tokens of a prompt meet different experts. Source: there, gpt-oss-120b: 720 tok/s, 7.3 TFLOPS.
EXPERTS_PREFILL = 0.5
# Layers on several GPUs wait for each other: a guess.
SPLIT_EFFICIENCY = 0.95


class BackendPrior(msgspec.Struct, frozen=True):
    """`decode` and `prefill` scale expected speeds against the usual backend; `n_ubatch` suits its kernels."""

    decode: float
    n_ubatch: int
    prefill: float = 1.0


# Source: kyuz0/amd-strix-halo-toolboxes logs (May and August 2026): RADV decodes 0-17 % faster than ROCm, ROCm
# prefills -5 to +43 %; ubatch from lhl/strix-halo-testing.
BACKENDS: dict[str, BackendPrior] = {
    "cuda": BackendPrior(1.0, 512),
    "metal": BackendPrior(1.0, 512),
    "vulkan": BackendPrior(0.98, 1024),
    "rocm": BackendPrior(0.92, 2048, 1.1),
    "sycl": BackendPrior(0.9, 512),
    "openvino": BackendPrior(0.5, 512),
    "opencl": BackendPrior(0.7, 512),
    "cpu": BackendPrior(1.0, 512),
}
# Two backends on one NVIDIA or Intel GPU: the vendor's own wins.
GENERIC_ON_NVIDIA = 0.9
NPU_LARGEST_PARAMETERS = 4_000_000_000


def bandwidth_gbs(device: Device) -> tuple[float, bool]:
    """Bytes a second the device can read, in GB/s, and whether that was measured or is assumed."""
    bandwidth = device.memory.bandwidth_gbs
    if bandwidth:
        return bandwidth, True
    assumed = {"cpu": UNKNOWN_CPU_GBS, "igpu": UNKNOWN_IGPU_GBS, "dgpu": UNKNOWN_DGPU_GBS}
    return assumed.get(device.kind, UNKNOWN_CPU_GBS), False


def effective_gbs(device: Device, backend: str) -> float:
    """What decoding is expected to read a second on this device through this backend."""
    gbs, _ = bandwidth_gbs(device)
    factor = CPU_EFFICIENCY if device.kind == "cpu" else GPU_EFFICIENCY
    if backend == "vulkan" and device.vendor == "NVIDIA":
        factor *= GENERIC_ON_NVIDIA
    if device.vendor == "software":
        return UNKNOWN_CPU_GBS * CPU_EFFICIENCY / 10  # a renderer on the CPU, without its kernels
    return gbs * factor * BACKENDS.get(backend, BACKENDS["cpu"]).decode

"""What a type costs in time: seconds of decoding for one weight, relative to Q4_K."""

from collections.abc import Mapping
from typing import Literal

from quantize.ggml_types import BLOCK_SIZES, GgmlType

DeviceKind = Literal["cpu", "gpu"]

# Decoding one weight, relative to repacked Q4_K; reciprocals of the middle of the measured ranges.
# Measured: AVX-512, one thread, in cache (docs/log.md, plan). Types missing here cost their bytes.
_CPU = {
    GgmlType.Q2_K: 0.80,
    GgmlType.Q4_0: 0.90,
    GgmlType.IQ4_NL: 0.90,
    GgmlType.Q3_K: 1.10,
    GgmlType.Q4_K: 1.00,
    GgmlType.Q5_K: 1.25,
    GgmlType.IQ4_XS: 1.25,
    GgmlType.Q6_K: 1.15,
    GgmlType.Q8_0: 1.60,
    GgmlType.IQ2_XXS: 1.70,
    GgmlType.IQ2_XS: 1.70,
    GgmlType.IQ2_S: 1.80,
    GgmlType.IQ3_XXS: 2.10,
    GgmlType.IQ3_S: 2.50,
    GgmlType.IQ1_S: 1.70,
    GgmlType.IQ1_M: 1.80,
}
# GPUs are bound by bandwidth: time follows bytes, but IQ2 and IQ1 decode no faster than IQ3.
# Source: llama.cpp, pull request 11595 (Vulkan, Radeon 780M).
_GPU_NO_FASTER_THAN_IQ3 = frozenset(
    {GgmlType.IQ1_S, GgmlType.IQ1_M, GgmlType.IQ2_XXS, GgmlType.IQ2_XS, GgmlType.IQ2_S}
)


def relative_bytes(qtype: GgmlType) -> float:
    """Bytes of one weight, relative to Q4_K."""
    block, size = BLOCK_SIZES[qtype]
    q4_block, q4_size = BLOCK_SIZES[GgmlType.Q4_K]
    return (size / block) / (q4_size / q4_block)


def decode_time(qtype: GgmlType, device: DeviceKind, measured: Mapping[str, float] | None = None) -> float:
    """Time to decode one weight of this type relative to Q4_K; `measured` (by type name) beats the table."""
    if measured and qtype.name in measured and measured.get("Q4_K"):
        return measured[qtype.name] / measured["Q4_K"]
    if device == "cpu":
        return max(_CPU.get(qtype, relative_bytes(qtype)), 0.0)
    if qtype in _GPU_NO_FASTER_THAN_IQ3:
        return relative_bytes(GgmlType.IQ3_XXS)
    return relative_bytes(qtype)


def slowness(qtype: GgmlType, device: DeviceKind, measured: Mapping[str, float] | None = None) -> float:
    """How much slower than its bytes alone would make it: 1 is as fast as Q4_K byte for byte."""
    return max(1.0, decode_time(qtype, device, measured) / max(relative_bytes(qtype), 1e-9))

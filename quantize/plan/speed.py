"""Decoding time per weight of each type, relative to TIME_UNIT."""

from collections.abc import Mapping

from quantize.files.gguf_file import GgufFile, LazyArray
from quantize.ggml_types import TIME_UNIT, GgmlType, bits_per_weight
from quantize.types import DeviceKind, ModelSpec, TensorSpec

# Times of a type vary by a tenth between loads. Measured: log-archive.md, "what types cost here".
_AS_FAST = 1.1


def relative_bytes(qtype: GgmlType) -> float:
    """Bytes per weight, relative to TIME_UNIT."""
    return bits_per_weight(qtype) / bits_per_weight(TIME_UNIT)


def decode_time(qtype: GgmlType, device: DeviceKind, measured: Mapping[str, float] | None = None) -> float:
    """Time to decode one weight of this type, relative to TIME_UNIT; `measured` (by type name) overrides the table.

    GPUs are bound by bandwidth, so time follows bytes. Exceptions are types that decode no faster than a larger
    one.
    """
    if measured and qtype.name in measured and measured.get(TIME_UNIT.name):
        return measured[qtype.name] / measured[TIME_UNIT.name]
    if device == "cpu":
        return relative_bytes(qtype) if qtype.traits.cpu_time is None else qtype.traits.cpu_time
    return relative_bytes(GgmlType[qtype.traits.gpu_time_of or qtype.name])


def slowness(qtype: GgmlType, device: DeviceKind, measured: Mapping[str, float] | None = None) -> float:
    """Decoding time relative to the time that the bytes alone imply: 1 is as fast per byte as TIME_UNIT."""
    return max(1.0, decode_time(qtype, device, measured) / max(relative_bytes(qtype), 1e-9))


def is_fast(qtype: GgmlType, device: DeviceKind, measured: Mapping[str, float] | None) -> bool:
    """Whether a type is about as fast on this machine as its bytes imply; False if it was not timed."""
    return qtype.name in (measured or {}) and slowness(qtype, device, measured) < _AS_FAST


def model_spec(file: GgufFile) -> ModelSpec:
    """The model properties that a plan needs; numbers missing in the header count as 0."""
    return ModelSpec(
        architecture=file.architecture,
        num_layers=file.arch_int("block_count") or 0,
        num_heads=_first(file, "attention.head_count"),
        num_kv_heads=_first(file, "attention.head_count_kv") or _first(file, "attention.head_count"),
        num_experts=file.arch_int("expert_count") or 0,
        tensors=tuple(TensorSpec(t.name, t.shape, t.ggml_type.name) for t in file.tensors),
    )


def _first(file: GgufFile, key: str) -> int:
    """The first layer's value, for keys that may hold one value per layer."""
    value = file.arch_value(key)
    if isinstance(value, LazyArray):
        return int(value.numbers()[0]) if value.count else 0
    if isinstance(value, tuple):
        value = value[0] if value else 0
    return value if isinstance(value, int) else 0

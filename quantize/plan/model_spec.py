"""The facts of a GGUF header that decide a mix."""

from quantize.files.gguf_file import GgufFile, LazyArray
from quantize.types import ModelSpec, TensorSpec


def model_spec(file: GgufFile) -> ModelSpec:
    """What a plan needs to know of a model; numbers the header lacks count as 0."""
    return ModelSpec(
        architecture=file.architecture,
        num_layers=file.arch_int("block_count") or 0,
        num_heads=_first(file, "attention.head_count"),
        num_kv_heads=_first(file, "attention.head_count_kv") or _first(file, "attention.head_count"),
        num_experts=file.arch_int("expert_count") or 0,
        tensors=tuple(TensorSpec(t.name, t.shape, t.ggml_type.name) for t in file.tensors),
    )


def _first(file: GgufFile, key: str) -> int:
    """The value for the first layer, where a model may give one for each."""
    value = file.arch_value(key)
    if isinstance(value, LazyArray):
        return int(value.numbers()[0]) if value.count else 0
    if isinstance(value, tuple):
        value = value[0] if value else 0
    return value if isinstance(value, int) else 0

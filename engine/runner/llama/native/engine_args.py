"""Applies raw llama.cpp arguments to the structs of a load."""

import ctypes
from typing import Any, Final

from engine.runner.engine_args import Metadata, metadata, overrides
from engine.runner.llama.native.llama_api import ggml
from engine.runner.protocol import LoadSettings

# llama.h: llama_rope_scaling_type, llama_split_mode, llama_model_kv_override_type.
_ROPE: Final = {"none": 0, "linear": 1, "yarn": 2, "longrope": 3}
_SPLIT: Final = {"none": 0, "layer": 1, "row": 2}
_INT, _FLOAT, _BOOL, _STR = range(4)
_CONTEXT: Final = (
    "rope_freq_base", "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow",
    "op_offload", "swa_full",
)  # fmt: skip


class UnknownBuffer(ValueError):
    """No device on this computer has a buffer type of this name."""


class _BufferOverride(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


def apply_to_model(api: Any, params: Any, settings: LoadSettings) -> list[Any]:
    """Set the model parameters; return the objects that must live until the load ends.

    Raises: UnknownBuffer; BadEngineArg.
    """
    keep: list[Any] = []
    args, split = settings.engine_args, settings.engine_args.tensor_split or settings.tensor_split
    if args.split_mode is not None:
        params.split_mode = _SPLIT[args.split_mode]
    if args.main_gpu is not None:
        params.main_gpu = args.main_gpu
    if split:
        shares = (ctypes.c_float * max(16, api.llama_max_devices()))(*split)
        params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
        keep.append(shares)
    params.check_tensors = args.check_tensors
    params.no_host = args.no_host
    elsewhere = overrides(args, settings.cpu_expert_layers)
    if elsewhere:
        buffers = _buffer_types(api)
        table = (_BufferOverride * (len(elsewhere) + 1))()
        for row, override in zip(table, elsewhere, strict=False):
            if override.buffer not in buffers:
                raise UnknownBuffer(f"there is no buffer type {override.buffer!r} here: {', '.join(buffers)}")
            row.pattern, row.buft = override.pattern.encode(), buffers[override.buffer]
        params.tensor_buft_overrides = ctypes.cast(table, ctypes.c_void_p)
        keep.append(table)
    values = metadata(args)
    if values:
        rows = (api.llama_model_kv_override * (len(values) + 1))()
        for row, value in zip(rows, values, strict=False):
            _fill(row, value)
        params.kv_overrides = ctypes.cast(rows, ctypes.POINTER(api.llama_model_kv_override))
        keep.append(rows)
    return keep


def _fill(row: Any, value: Metadata) -> None:
    row.key = value.key.encode()
    if isinstance(value.value, bool):
        row.tag, row.value.val_bool = _BOOL, value.value
    elif isinstance(value.value, int):
        row.tag, row.value.val_i64 = _INT, value.value
    elif isinstance(value.value, float):
        row.tag, row.value.val_f64 = _FLOAT, value.value
    else:
        row.tag, row.value.val_str = _STR, value.value.encode()


def _buffer_types(api: Any) -> dict[str, int]:
    """Return the buffer types of all devices by name. Source: ggml-backend.h; the package does not wrap it."""
    lib = ggml(api)
    lib.ggml_backend_dev_count.restype = ctypes.c_size_t
    for name in ("ggml_backend_dev_get", "ggml_backend_dev_buffer_type"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    lib.ggml_backend_dev_buffer_type.argtypes = [ctypes.c_void_p]
    lib.ggml_backend_buft_name.restype = ctypes.c_char_p
    lib.ggml_backend_buft_name.argtypes = [ctypes.c_void_p]
    types: dict[str, int] = {}
    for index in range(lib.ggml_backend_dev_count()):
        buffer = lib.ggml_backend_dev_buffer_type(lib.ggml_backend_dev_get(index))
        if buffer:
            types.setdefault(lib.ggml_backend_buft_name(buffer).decode(), buffer)
    return types


def apply_to_context(params: Any, settings: LoadSettings) -> None:
    """Set the context parameters."""
    args = settings.engine_args
    for name in _CONTEXT:
        value = getattr(args, name)
        if value is not None:
            setattr(params, name, value)
    if args.rope_scaling is not None:
        params.rope_scaling_type = _ROPE[args.rope_scaling]
    if args.rope_freq_scale is not None:
        params.rope_freq_scale = args.rope_freq_scale
    elif args.rope_scale is not None:
        params.rope_freq_scale = 1 / args.rope_scale
    if args.kv_offload is not None:
        params.offload_kqv = args.kv_offload

"""Checks before a load that the Python bindings describe the library's structs correctly.

A missing or additional field shifts all fields after it: the library reads a batch size where threads were written,
and ctypes silently reads values for missing fields. There are three checks: the fields that are set here exist; the
library writes as many bytes of defaults as the bindings declare; known defaults are at their places.
"""

import ctypes
import platform
from typing import Any, Final

# Fields that model.py, engine_args.py and vision.py set; a test compares this list with them.
MODEL_FIELDS: Final = (
    "n_gpu_layers", "load_mode", "use_extra_bufts", "load_mtp", "progress_callback", "devices", "no_alloc",
    "split_mode", "main_gpu", "tensor_split", "check_tensors", "no_host", "tensor_buft_overrides", "kv_overrides",
)  # fmt: skip
# Fields that are set where the version has them: the first version with `lazy_mode` is 0.3.36.
NEWER_FIELDS: Final = ("lazy_mode",)
CONTEXT_FIELDS: Final = (
    "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads", "n_threads_batch", "type_k", "type_v",
    "flash_attn_type", "kv_unified", "swa_full", "no_perf", "ctx_type", "ctx_other", "n_outputs_max", "n_rs_seq",
    "n_outputs_max_per_seq", "rope_scaling_type", "rope_freq_scale", "offload_kqv", "cb_eval",
)  # fmt: skip
# Source: llama_model_default_params and llama_context_default_params, llama.cpp/src. Defaults that releases change
# (threads, GPU layers) are omitted; the others are spread over the whole of each struct.
MODEL_DEFAULTS: Final = {
    "split_mode": 1,
    "main_gpu": 0,
    "vocab_only": False,
    "check_tensors": False,
    "no_alloc": False,
}
CONTEXT_DEFAULTS: Final = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "rope_scaling_type": -1, "pooling_type": -1,
    "attention_type": -1, "rope_freq_base": 0.0, "yarn_orig_ctx": 0, "type_k": 1, "type_v": 1, "offload_kqv": True,
    "embeddings": False,
}  # fmt: skip
# Space after a struct for bytes that the library may write beyond the size in the bindings.
_BEYOND: Final = 4096
_ALIGNMENT: Final = 8


def problems(api: Any) -> list[str]:
    """Return the mismatches as text; empty if bindings and library match."""
    messages: list[str] = []
    for name, fields, defaults in (
        ("llama_model_params", MODEL_FIELDS, MODEL_DEFAULTS),
        ("llama_context_params", CONTEXT_FIELDS, CONTEXT_DEFAULTS),
    ):
        struct = getattr(api, name, None)
        make = f"{name.removesuffix('_params')}_default_params"
        if struct is None or not hasattr(api, make):
            messages.append(f"it has no {name} or no {make}")
            continue
        declared = {field[0] for field in struct._fields_}
        missing = [field for field in fields if field not in declared]
        if missing:
            messages.append(f"its {name} has no {', '.join(missing)}, which is set here")
        written = written_bytes(getattr(api._lib, make))  # noqa: SLF001 - the one shared handle
        size = ctypes.sizeof(struct)
        if written is not None and not size - _ALIGNMENT < written <= size:
            messages.append(f"its library writes {written} bytes of {name}, its bindings describe {size}")
            continue  # reading the fields would report the same again
        values = getattr(api, make)()
        wrong = {field: getattr(values, field) for field in defaults if field in declared}
        messages += [
            f"{name}.{field} reads {wrong[field]} where the default is {defaults[field]}"
            for field in wrong
            if wrong[field] != defaults[field]
        ]
    return messages


def written_bytes(function: Any) -> int | None:
    """Return the bytes that a function returning a large struct writes; None if the platform passes no address.

    On x86-64 such a function gets the address as a hidden first argument. Two calls with memory of two patterns
    show which bytes are written; a padding byte at the end may not be.
    """
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return None
    plain = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(ctypes.cast(function, ctypes.c_void_p).value or 0)
    seen = []
    for pattern in (0xA5, 0x5A):
        memory = (ctypes.c_ubyte * _BEYOND)(*([pattern] * _BEYOND))
        plain(ctypes.addressof(memory))
        seen.append((bytes(memory), pattern))
    (first, a), (second, b) = seen
    return max((i + 1 for i in range(_BEYOND) if first[i] != a or second[i] != b), default=0)

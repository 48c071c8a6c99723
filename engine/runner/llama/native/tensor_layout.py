"""Memory layout of ggml's tensors, compared with the library's before any is read."""

import ctypes
from typing import Any, Final

from engine.runner.llama.native.llama_api import KernelsMissing

F32, F16, BF16 = 0, 1, 30
# Source: ggml.h and ggml.c: ggml_object, and the arrays of ggml_tensor.
OBJECT_BYTES: Final = 32
MAX_DIMS, MAX_SRC, MAX_NAME, OP_PARAMS = 4, 10, 64, 16


class Tensor(ctypes.Structure):
    """ggml_tensor. Source: ggml.h; `check_layout` compares it with the library's before anything is read."""


Tensor._fields_ = (
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * MAX_DIMS),
    ("nb", ctypes.c_size_t * MAX_DIMS),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * OP_PARAMS),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(Tensor) * MAX_SRC),
    ("view_src", ctypes.POINTER(Tensor)),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * MAX_NAME),
    ("extra", ctypes.c_void_p),
    ("padding", ctypes.c_char * 8),
)


class InitParams(ctypes.Structure):
    """ggml_init_params. Source: ggml.h."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def check_layout(lib: Any) -> None:
    """Compare the layout with the library's. Raises: KernelsMissing: a tensor does not read back as created."""
    pointer = ctypes.POINTER(Tensor)
    for name, result, arguments in (
        ("ggml_init", ctypes.c_void_p, [InitParams]),
        ("ggml_free", None, [ctypes.c_void_p]),
        ("ggml_tensor_overhead", ctypes.c_size_t, []),
        ("ggml_new_tensor_4d", pointer, [ctypes.c_void_p, ctypes.c_int] + [ctypes.c_int64] * 4),
        ("ggml_set_name", pointer, [pointer, ctypes.c_char_p]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    size = lib.ggml_tensor_overhead()
    context = lib.ggml_init(InitParams(1 << 16, None, True))
    try:
        tensor = lib.ggml_new_tensor_4d(context, F16, 3, 5, 7, 2).contents
        lib.ggml_set_name(ctypes.byref(tensor), b"probe")
        seen = (tensor.type, tuple(tensor.ne), tensor.nb[1], tensor.op, tensor.name, tensor.data)
    finally:
        lib.ggml_free(context)
    right = (F16, (3, 5, 7, 2), 6, 0, b"probe", None)
    if size != OBJECT_BYTES + ctypes.sizeof(Tensor) or seen != right:
        raise KernelsMissing("ggml's tensors are laid out otherwise than is known here")

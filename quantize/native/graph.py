"""Reads a tensor of a running graph inside the evaluation callback: its name, shape, sources and values.

Hooks see every node of a graph, or the inputs of multiplications with named weights.
"""

import ctypes
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from quantize.native.libraries import ggml_base

_MAX_DIMS = 4
_MAX_OP_PARAMS = 64
_MAX_SRC = 10
_MAX_NAME = 64
_TYPE_F32: Final = 0


class GgmlTensor(ctypes.Structure):
    """Source: ggml.h, struct ggml_tensor, at the pinned llama.cpp commit. Pointers are plain addresses."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * _MAX_DIMS),
        ("nb", ctypes.c_size_t * _MAX_DIMS),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * (_MAX_OP_PARAMS // 4)),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * _MAX_SRC),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * _MAX_NAME),
        ("extra", ctypes.c_void_p),
        ("padding", ctypes.c_char * 8),
    )


@cache
def op_id(name: str) -> int:
    """The number of a graph operation ("MUL_MAT"). Raises: ValueError: this ggml has no such operation."""
    op_name = ggml_base().ggml_op_name
    op_name.restype = ctypes.c_char_p
    op_name.argtypes = [ctypes.c_int]
    for number in range(200):
        current = op_name(number)
        if current == name.encode():
            return number
        if current is None or current == b"":
            break
    raise ValueError(f"ggml has no operation {name!r}")


def tensor_at(address: int) -> GgmlTensor:
    """The structure at an address from llama.cpp; valid as long as its graph."""
    return GgmlTensor.from_address(address)


def name_of(tensor: GgmlTensor) -> str:
    """The tensor's name; llama.cpp uses the names in the file for weights."""
    raw: bytes = tensor.name
    return raw.decode(errors="replace")


def num_bytes(tensor: GgmlTensor) -> int:
    """Size of the tensor's data in bytes, including views and padding between rows."""
    nbytes = ggml_base().ggml_nbytes
    nbytes.restype = ctypes.c_size_t
    nbytes.argtypes = [ctypes.c_void_p]
    return int(nbytes(ctypes.addressof(tensor)))


def read_bytes(tensor: GgmlTensor) -> npt.NDArray[np.uint8]:
    """A copy of the tensor's bytes, from any device."""
    out = np.empty(num_bytes(tensor), np.uint8)
    _backend().ggml_backend_tensor_get(ctypes.addressof(tensor), out.ctypes.data, 0, out.nbytes)
    return out


def write_bytes(tensor: GgmlTensor, values: npt.NDArray[np.uint8]) -> None:
    """Overwrite the tensor in place. Raises: ValueError: the number of bytes differs from the tensor's."""
    source = np.ascontiguousarray(values).reshape(-1)
    if source.dtype != np.uint8 or source.nbytes != num_bytes(tensor):
        raise ValueError(f"{source.nbytes} bytes for a tensor of {num_bytes(tensor)}")
    _backend().ggml_backend_tensor_set(ctypes.addressof(tensor), source.ctypes.data, 0, source.nbytes)


def read_floats(tensor: GgmlTensor) -> npt.NDArray[np.float32]:
    """A float32 tensor as (ne3, ne2, ne1, ne0): a view if it is in host memory, else a copy.

    A view is valid only until the callback returns. Raises: ValueError: the tensor is not float32.
    """
    if tensor.type != _TYPE_F32:
        raise ValueError(f"tensor {tensor.name!r} has type {tensor.type}, expected {_TYPE_F32}")
    lib = _backend()
    if tensor.buffer and lib.ggml_backend_buffer_is_host(tensor.buffer):
        buffer = (ctypes.c_uint8 * num_bytes(tensor)).from_address(tensor.data)
        raw: npt.NDArray[np.uint8] = np.ctypeslib.as_array(buffer)
    else:
        raw = read_bytes(tensor)
    shape = tuple(reversed(tensor.ne[:]))
    strides = tuple(reversed(tensor.nb[:]))
    return np.lib.stride_tricks.as_strided(raw.view(np.float32), shape, strides, writeable=False)


def read_ints(tensor: GgmlTensor) -> npt.NDArray[np.int32]:
    """A copy of an int32 tensor as (ne3, ne2, ne1, ne0)."""
    raw = read_bytes(tensor)
    shape = tuple(reversed(tensor.ne[:]))
    strides = tuple(reversed(tensor.nb[:]))
    return np.lib.stride_tricks.as_strided(raw.view(np.int32), shape, strides).copy()


@cache
def _backend() -> ctypes.CDLL:
    lib = ggml_base()
    transfer: list[Any] = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    lib.ggml_backend_tensor_get.argtypes = transfer
    lib.ggml_backend_tensor_get.restype = None
    lib.ggml_backend_tensor_set.argtypes = transfer
    lib.ggml_backend_tensor_set.restype = None
    lib.ggml_backend_buffer_is_host.argtypes = [ctypes.c_void_p]
    lib.ggml_backend_buffer_is_host.restype = ctypes.c_bool
    return lib


class NodeHook:
    """A hook for the nodes of a running graph. Subclass it and pass it to `EvalContext.run`."""

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Whether the values of a node are needed. Called for every node, before it is computed."""
        raise NotImplementedError

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Read a requested node, just after it was computed. Returning False ends this graph."""
        raise NotImplementedError

    def ended(self) -> None:
        """Called after each evaluation, even after a failed one."""


class Tap(NodeHook):
    """A hook for the inputs of multiplications with named weights."""

    def wants(self, weight: str, node: GgmlTensor) -> bool:
        """Whether the values of this multiplication's input are needed. Called before it is computed."""
        raise NotImplementedError

    def take(self, weight: str, node: GgmlTensor) -> None:
        """Read the input of a requested multiplication. Called after it was computed."""
        raise NotImplementedError

    def asks(self, address: int, node: GgmlTensor) -> bool:
        """Forward multiplications to `wants`."""
        del address
        weight = multiplied_weight(node)
        return weight is not None and self.wants(weight, node)

    def takes(self, address: int, node: GgmlTensor) -> bool:
        """Forward multiplications to `take`."""
        del address
        weight = multiplied_weight(node)
        assert weight is not None
        self.take(weight, node)
        return True


def multiplied_weight(node: GgmlTensor) -> str | None:
    """The name of the weight that a node multiplies by; None if the node is not a multiplication."""
    if node.op not in (op_id("MUL_MAT"), op_id("MUL_MAT_ID")) or not node.src[0]:
        return None
    return name_of(tensor_at(node.src[0]))

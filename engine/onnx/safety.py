"""Checks whether a graph is safe for ONNX Runtime: all tensors, all files it names, all operators it needs.

ONNX Runtime and the onnx package have repeatedly let external data leave the model's folder (CVE-2022-25882,
CVE-2024-27318, CVE-2026-27489, links). Therefore this module checks the files, including sparse tensors.
"""

import math
import os
from pathlib import Path
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # protobuf ships no types
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from quantize.errors import BadFile, IncompleteFile, RefusedFormat
from quantize.files.safetensors_file import safe_member

# A graph with external weights takes a few MB; with weights inside, protobuf's own limit is 2 GiB.
MAX_GRAPH_BYTES: Final = (2 << 30) - 1
MAX_NODES: Final = 1 << 20
MAX_TENSOR_BYTES: Final = 1 << 40
MAX_RANK: Final = 32
# Operators of ONNX Runtime itself or of a vendor's provider; any other would need a library.
DOMAINS: Final = frozenset(
    {
        "", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft",
        "com.microsoft.experimental", "com.microsoft.nchwc", "com.ms.internal.nhwc", "org.pytorch.aten",
        "com.amd", "com.ryzenai", "com.amd.quark", "com.amd.ryzenai", "vai", "com.xilinx", "com.qti.aisw",
    }
)  # fmt: skip
# Bits per value of each type. Source: onnx.proto, TensorProto.DataType.
BITS: Final = {
    TensorProto.FLOAT: 32, TensorProto.UINT8: 8, TensorProto.INT8: 8, TensorProto.UINT16: 16,
    TensorProto.INT16: 16, TensorProto.INT32: 32, TensorProto.INT64: 64, TensorProto.BOOL: 8,
    TensorProto.FLOAT16: 16, TensorProto.DOUBLE: 64, TensorProto.UINT32: 32, TensorProto.UINT64: 64,
    TensorProto.COMPLEX64: 64, TensorProto.COMPLEX128: 128, TensorProto.BFLOAT16: 16,
    TensorProto.FLOAT8E4M3FN: 8, TensorProto.FLOAT8E4M3FNUZ: 8, TensorProto.FLOAT8E5M2: 8,
    TensorProto.FLOAT8E5M2FNUZ: 8, TensorProto.UINT4: 4, TensorProto.INT4: 4, TensorProto.FLOAT4E2M1: 4,
}  # fmt: skip
_TYPED_FIELDS: Final = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def check_graph(path: Path, root: Path) -> ModelProto:
    """Parse one untrusted graph without its weights and check all of it. Call it in a child process.

    Links may not lead outside `root`. Raises: BadFile, IncompleteFile, RefusedFormat: what is wrong, by name.
    """
    size = path.stat().st_size
    if size > MAX_GRAPH_BYTES:
        raise BadFile(str(path), f"a graph of {size} bytes; at most {MAX_GRAPH_BYTES} are read")
    try:
        model: ModelProto = onnx.load_model(os.fspath(path), load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        raise BadFile(str(path), "it is no ONNX graph") from error
    if not model.graph.node:
        raise BadFile(str(path), "it is no ONNX graph, or an empty one")
    for opset in model.opset_import:
        _check_domain(opset.domain, path)
    _check_graph(model.graph, path, root)
    for function in model.functions:
        _check_domain(function.domain if function.domain in DOMAINS else "", path)
        for node in function.node:
            _check_node(node, path, root)
    return model


def count_parameters(model: ModelProto) -> int:
    """Parameters of a graph: values of float tensors; packed weights count as K * N."""
    packed = 0
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            facts = {a.name: a.i for a in node.attribute}
            packed += facts.get("K", 0) * facts.get("N", 0)
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    scales = {name for node in model.graph.node if node.op_type == "MatMulNBits" for name in node.input[2:3]}
    plain = sum(
        math.prod(t.dims) for t in model.graph.initializer if t.data_type in floats and t.name not in scales
    )
    return int(packed + plain)


def _check_graph(graph: GraphProto, path: Path, root: Path) -> None:
    if len(graph.node) > MAX_NODES:
        raise BadFile(str(path), f"{len(graph.node)} operators; at most {MAX_NODES} are taken")
    if graph.sparse_initializer:
        raise RefusedFormat(str(path), "it contains sparse tensors, which are not loaded")
    for tensor in graph.initializer:
        _check_tensor(tensor, path, root)
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_value < 0 or dimension.dim_value > MAX_TENSOR_BYTES:
                raise BadFile(str(path), f"{value.name[:80]} has a dimension of {dimension.dim_value}")
    for node in graph.node:
        _check_node(node, path, root)


def _check_node(node: NodeProto, path: Path, root: Path) -> None:
    _check_domain(node.domain, path)
    for attribute in node.attribute:
        if attribute.type in {AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS}:
            raise RefusedFormat(str(path), "it contains sparse tensors, which are not loaded")
        for tensor in (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])):
            _check_tensor(tensor, path, root)
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            _check_graph(graph, path, root)
    if node.op_type == "EPContext":
        _check_context(node, path, root)


def _check_context(node: NodeProto, path: Path, root: Path) -> None:
    """Check a precompiled graph part: its binary must be a file in this folder."""
    facts: dict[str, Any] = {a.name: a for a in node.attribute}
    embedded = facts["embed_mode"].i if "embed_mode" in facts else 1
    if not embedded and "ep_cache_context" in facts:
        name = facts["ep_cache_context"].s.decode("utf-8", "replace").removeprefix("./")
        if not safe_member(path.parent, name, root).is_file():
            raise BadFile(str(path), f"{name[:80]}, which it needs, is not there")


def _check_domain(domain: str, path: Path) -> None:
    if domain not in DOMAINS:
        raise RefusedFormat(str(path), f"it needs custom operators ({domain[:60]!r}), which would run as code")


def _check_tensor(tensor: TensorProto, path: Path, root: Path) -> None:
    name = tensor.name[:80]
    if len(tensor.dims) > MAX_RANK or any(d < 0 for d in tensor.dims):
        raise BadFile(str(path), f"tensor {name} has the impossible shape {list(tensor.dims)[:8]}")
    if tensor.data_type == TensorProto.STRING:
        if tensor.data_location == TensorProto.EXTERNAL:
            raise BadFile(str(path), f"tensor {name}: text cannot be in another file")
        return
    bits = BITS.get(tensor.data_type)
    if bits is None:
        raise BadFile(str(path), f"tensor {name} has the unknown type {tensor.data_type}")
    needed = (math.prod(tensor.dims) * bits + 7) // 8
    if needed > MAX_TENSOR_BYTES:
        raise BadFile(str(path), f"tensor {name} would take {needed} bytes")
    if tensor.data_location == TensorProto.EXTERNAL:
        _check_external(tensor, needed, path, root)
    else:
        _check_inside(tensor, needed, path)


def _check_inside(tensor: TensorProto, needed: int, path: Path) -> None:
    name = tensor.name[:80]
    if tensor.external_data:
        raise BadFile(str(path), f"tensor {name} names another file but is declared to be in this one")
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != needed:
            raise BadFile(str(path), f"tensor {name} has {len(tensor.raw_data)} bytes, its shape needs {needed}")
    elif needed and not any(len(getattr(tensor, field)) for field in _TYPED_FIELDS):
        raise BadFile(str(path), f"tensor {name} has no values, its shape needs {needed} bytes")


def _check_external(tensor: TensorProto, needed: int, path: Path, root: Path) -> None:
    name = tensor.name[:80]
    fields: dict[str, str] = {}
    for entry in tensor.external_data:
        if not isinstance(entry.key, str) or not isinstance(entry.value, str):
            raise BadFile(str(path), f"tensor {name} says where its weights are in text that is not UTF-8")
        if entry.key in fields:
            raise BadFile(str(path), f"tensor {name} names its {entry.key[:20]} twice")
        fields[entry.key] = entry.value
    file = safe_member(path.parent, fields.get("location", "").removeprefix("./"), root)
    offset, length = (
        _size(fields.get("offset", "0"), name, path),
        _size(fields.get("length", str(needed)), name, path),
    )
    try:
        info = file.stat()
        links = info.st_nlink if root == path.parent else 1  # a blob cache has hard links on purpose
    except OSError as error:
        raise BadFile(str(path), f"its weights {file.name} cannot be read: {error.strerror}") from error
    if not file.is_file():
        raise BadFile(str(path), f"its weights {file.name} are not a file")
    if links > 1:
        raise RefusedFormat(str(path), f"its weights {file.name} are a hard link to a file of {links} names")
    if length != needed:
        raise BadFile(str(path), f"tensor {name} has {length} bytes in {file.name}, its shape needs {needed}")
    if offset + length > info.st_size:
        raise IncompleteFile(str(file), info.st_size, offset + length)


def _size(value: str, name: str, path: Path) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 15:
        raise BadFile(str(path), f"tensor {name} lies at {value[:20]!r}, which is not an offset")
    return int(value)

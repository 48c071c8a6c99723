"""/tessera/v1/models/convert and /tessera/v1/onnx/convert: conversion of a model to another format."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.library.types import ServerPath
from quantize.onnx.request import Converted


class ConvertRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/models/convert: converts the Hugging Face folder `source` to a GGUF file.

    Paths are absolute paths on the server's computer. Without `out`, the file is created in the library's models
    folder. With `float_type` "auto", 16-bit tensors keep their type and F32 tensors become F16.
    """

    source: ServerPath
    out: ServerPath | None = None
    float_type: Literal["auto", "F16", "BF16", "F32"] = "auto"


class ConverterState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/converter: llama.cpp's converter, for architectures that Tessera's own does not support.

    `bytes` is the current disk use, including unfinished and old parts. Installing it downloads about
    `download_bytes` and takes about `disk_bytes` of disk and `seconds` (measured on two busy cores).
    `architectures` are those it supports.
    """

    installed: bool
    version: str
    path: str
    bytes: int
    download_bytes: int
    disk_bytes: int
    seconds: float
    architectures: tuple[str, ...]


class ConverterFetched(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a `convert` job that downloaded llama.cpp's converter."""

    path: str
    bytes: int


class ConverterRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """DELETE /tessera/v1/converter: the number of freed bytes."""

    freed_bytes: int


class FixedShapes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Quantized graphs with fixed shapes: `context` tokens in total, weights of 8 or 4 `bits`.

    For the speech model (source `speech`) the graph takes `seconds` of audio per call instead and uses floats.
    """

    context: Annotated[int, Meta(ge=64, le=8192)] = 512
    bits: Literal[8, 4] = 8
    seconds: Annotated[float, Meta(ge=2, le=30)] = 12


class OnnxConvertRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/onnx/convert: converts a library model or a GGUF file (absolute path) to an ONNX folder.

    `exact` uses 32-bit activations instead of 8-bit. `all_logits` returns the logits of every position.
    """

    source: ServerPath
    out: ServerPath | None = None
    exact: bool = False
    all_logits: bool = False
    fixed: FixedShapes | None = None


class ConvertedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a `convert` job that created a GGUF file; `notes` list differences from the source folder."""

    model: str
    path: str
    type: str
    notes: tuple[str, ...] = ()


class ConvertedFolder(Converted, frozen=True, kw_only=True):
    """Result of a `convert` job that created an ONNX folder."""

    model: str
    path: str

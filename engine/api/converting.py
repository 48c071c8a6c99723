"""/tessera/v1/models/convert and /tessera/v1/onnx/convert: other formats of a model."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.library.types import ServerPath
from quantize.onnx.request import Converted


class ConvertRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/models/convert: the Hugging Face folder `source` to a GGUF file.

    Paths are whole ones on this computer; without `out` the file is with the library's own models. `float_type`
    auto keeps 16 bits as they are and makes F16 of F32.
    """

    source: ServerPath
    out: ServerPath | None = None
    float_type: Literal["auto", "F16", "BF16", "F32"] = "auto"


class ConverterState(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/converter: llama.cpp's own converter, for families that Tessera's does not know.

    `bytes` is what is on the disk now, unfinished or old parts too. Getting it downloads about `download_bytes`,
    takes about `disk_bytes` of disk and `seconds` (measured: two busy cores). `architectures` are those it knows.
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
    """Result of a job of kind `convert` that fetched llama.cpp's converter."""

    path: str
    bytes: int


class ConverterRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """DELETE /tessera/v1/converter: the bytes that are free again."""

    freed_bytes: int


class FixedShapes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Quantized graphs of fixed shapes: `context` tokens in all, weights of 8 or 4 `bits`.

    The speech model (source `speech`) gets `seconds` of sound at once instead, in floats.
    """

    context: Annotated[int, Meta(ge=64, le=8192)] = 512
    bits: Literal[8, 4] = 8
    seconds: Annotated[float, Meta(ge=2, le=30)] = 12


class OnnxConvertRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/onnx/convert: a model of the library, or the GGUF file at a whole path, to an ONNX folder.

    `exact`: activations in 32 bits instead of 8. `all_logits`: logits of every position.
    """

    source: ServerPath
    out: ServerPath | None = None
    exact: bool = False
    all_logits: bool = False
    fixed: FixedShapes | None = None


class ConvertedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a job of kind `convert` that made a GGUF file; `notes` say what is not as in the folder."""

    model: str
    path: str
    type: str
    notes: tuple[str, ...] = ()


class ConvertedFolder(Converted, frozen=True, kw_only=True):
    """Result of a job of kind `convert` that made an ONNX folder."""

    model: str
    path: str

"""Request and result of a conversion to ONNX."""

from pathlib import Path
from typing import Final

import msgspec

# accuracy_level of MatMulNBits: 8-bit activations, as in llama.cpp; 0 keeps them in float32 and is slower. Source:
# ONNX Runtime, ContribOperators.md, MatMulNBits.
FAST: Final = 4
EXACT: Final = 0


# File that identifies a speech model's folder of fixed shapes.
SPEECH_FACTS: Final = "speech.json"


class FixedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Graphs of fixed shapes for an NPU's compiler: a context of `context` tokens, weights of 8 or 4 `bits`.

    For a speech model, `seconds` is the length of audio per run instead.
    """

    context: int = 512
    bits: int = 8
    seconds: float = 12


class OnnxRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Convert `source` (a GGUF file) to `out` (a folder that is missing, or was made from the same file).

    `all_logits` returns logits of every position, which speculative decoding needs; prefill is slower then. `fixed`
    requests quantized graphs of fixed shapes instead.
    """

    source: Path
    out: Path
    accuracy_level: int = FAST
    all_logits: bool = False
    fixed: FixedOptions | None = None


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a conversion. `notices` list differences from the source for the user.

    `cached` means that the folder already existed, made from the same file, and was not changed.
    """

    folder: str
    architecture: str
    data_bytes: int
    notices: tuple[str, ...] = ()
    cached: bool = False

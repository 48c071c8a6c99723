"""What is asked of a conversion to ONNX, and what comes out of it."""

from pathlib import Path
from typing import Final

import msgspec

# MatMulNBits with activations in 8 bits, as llama.cpp computes; 0 keeps them in float32 and is slower.
# Source: ONNX Runtime, ContribOperators.md, MatMulNBits.
FAST: Final = 4
EXACT: Final = 0


# What a speech model's folder of fixed shapes is known by.
SPEECH_FACTS: Final = "speech.json"


class FixedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Graphs of fixed shapes for an NPU's compiler: `context` tokens in all, weights of 8 or 4 `bits`.

    A speech model gets `seconds` of sound at once instead.
    """

    context: int = 512
    bits: int = 8
    seconds: float = 12


class OnnxRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Convert `source` (a GGUF file) to `out` (a folder that is not there, or was made from the same file).

    `all_logits` gives logits of every position, which verifying drafts needs; prefill takes longer then.
    `fixed` asks for quantized graphs of fixed shapes instead.
    """

    source: Path
    out: Path
    accuracy_level: int = FAST
    all_logits: bool = False
    fixed: FixedOptions | None = None


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """What was written. `notices` say, for people, what is not exactly as in the source.

    `cached` says that the folder had been made from the same file before and was left as it was.
    """

    folder: str
    architecture: str
    data_bytes: int
    notices: tuple[str, ...] = ()
    cached: bool = False

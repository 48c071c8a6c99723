"""What is asked of a conversion to ONNX, and what comes out of it."""

from pathlib import Path
from typing import Final

import msgspec

# MatMulNBits with activations in 8 bits, as llama.cpp computes; 0 keeps them in float32 and is slower.
# Source: ONNX Runtime, ContribOperators.md, MatMulNBits.
FAST: Final = 4
EXACT: Final = 0


class OnnxRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Convert `source` (a GGUF file) to `out` (a folder that is not there, or was made from the same file).

    `all_logits` gives logits of every position, which checking guesses needs; reading prompts takes longer then.
    """

    source: Path
    out: Path
    accuracy_level: int = FAST
    all_logits: bool = False


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """What was written. `notices` say, for people, what is not exactly as in the source.

    `cached` says that the folder had been made from the same file before and was left as it was.
    """

    folder: str
    architecture: str
    data_bytes: int
    notices: tuple[str, ...]
    cached: bool = False

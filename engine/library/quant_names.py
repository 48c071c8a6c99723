"""Names of quantization mixes: from a file's own number, from its name, from its tensors."""

import re
from collections.abc import Mapping

# Source: llama.h, enum llama_ftype (as in gguf 0.19, LlamaFileType), without the LLAMA_FTYPE_MOSTLY_ prefix.
FILE_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0",
    37: "TQ2_0", 38: "MXFP4", 39: "NVFP4", 40: "Q1_0",
}  # fmt: skip

_IN_NAME = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q[1-8](?:_[0-9KA-Z]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16))(?=$|[-._])",
    re.IGNORECASE,
)


def from_file_name(stem: str) -> str:
    """The mix a file name (without extension) announces last, upper case, or an empty string."""
    found = _IN_NAME.findall(stem)
    return str(found[-1]).upper().replace("FP16", "F16") if found else ""


def without_quantization(stem: str) -> str:
    """The file name without the announced mix: `qwen3-8b-Q4_K_M` becomes `qwen3-8b`."""
    return _IN_NAME.sub("", stem).strip("-._") or stem


def from_header(file_type: object, type_bytes: Mapping[str, int]) -> str:
    """The mix named by `general.file_type`, else the tensor type that takes the most bytes."""
    if isinstance(file_type, int) and file_type in FILE_TYPES:
        return FILE_TYPES[file_type]
    return max(type_bytes, key=lambda t: type_bytes[t], default="")

"""Names of quantization mixes: from a file's own number, from its name, from its tensors."""

import re
from collections.abc import Mapping

from quantize.ggml_types import GgmlType
from quantize.plan.llama_cpp_preset_rules import MIXES

# llama.cpp's number of a file's mix or format, as its name without LLAMA_FTYPE_MOSTLY_.
_FORMATS = {t.traits.file_type: t.name for t in GgmlType if t.traits.file_type is not None}
FILE_TYPES: dict[int, str] = {**_FORMATS, **{mix.ftype: name for name, mix in MIXES.items()}}

_IN_NAME = re.compile(
    rf"(?:^|[-._])((?:UD-)?(?:I?Q[1-8](?:_[0-9KA-Z]+)*|(?:{'|'.join(_FORMATS.values())})(?:_MOE)?|FP16))(?=$|[-._])",
    re.IGNORECASE,
)


def from_file_name(stem: str) -> str:
    """The mix a file name (without extension) announces last, upper case, or an empty string."""
    found = _IN_NAME.findall(stem)
    return str(found[-1]).upper().replace("FP16", "F16") if found else ""


def from_header(file_type: object, type_bytes: Mapping[str, int]) -> str:
    """The mix named by `general.file_type`, else the tensor type that takes the most bytes."""
    if isinstance(file_type, int) and file_type in FILE_TYPES:
        return FILE_TYPES[file_type]
    return max(type_bytes, key=lambda t: type_bytes[t], default="")

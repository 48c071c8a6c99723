"""Short, stable names for models."""

import re
import unicodedata
from collections.abc import Container, Mapping
from pathlib import Path

from quantize.files.gguf_split import parse_split_name
from quantize.ggml_types import GgmlType
from quantize.plan.llama_cpp_preset_rules import MIXES

_MAX_ID_CHARS = 80
_EMPTY_NAMES = frozenset({"model", "ggml-model", "weights"})
_UNSAFE = re.compile(r"[^a-z0-9._-]+")


def stem_of(file_name: str) -> str:
    """File name without extension and without the part number of a split model."""
    split = parse_split_name(file_name)
    if split is not None:
        return split.stem
    return file_name[:-5] if file_name.lower().endswith(".gguf") else file_name


def slug(text: str) -> str:
    """Text reduced to lower-case letters, digits, `.`, `_` and `-`; never empty."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return _UNSAFE.sub("-", plain).strip("-._")[:_MAX_ID_CHARS].rstrip("-._") or "model"


def model_id(path: Path, *, is_folder: bool, used_ids: Container[str]) -> str:
    """A new model's id: the name of its file or folder, with a number if another model has that id."""
    base = slug(folder_name(path) if is_folder else file_title(path))
    if base not in used_ids:
        return base
    number = 2
    while f"{base}-{number}" in used_ids:
        number += 1
    return f"{base}-{number}"


def file_title(path: Path) -> str:
    """A display name. For `model.gguf` it is the folder's name, because the file name is generic."""
    stem = stem_of(path.name)
    return path.parent.name if stem.lower() in _EMPTY_NAMES and path.parent.name else stem


def folder_name(path: Path) -> str:
    """A folder's display name. For a snapshot in the Hugging Face cache it is the repository, not the commit."""
    if path.parent.name == "snapshots":
        return path.parent.parent.name.rpartition("--")[2]
    return path.name


# Names of quantization recipes: from the file's `general.file_type`, its name, or its tensors.

# llama.cpp's file type number to its name without LLAMA_FTYPE_MOSTLY_.
_FORMATS = {t.traits.file_type: t.name for t in GgmlType if t.traits.file_type is not None}
FILE_TYPES: dict[int, str] = {**_FORMATS, **{mix.ftype: name for name, mix in MIXES.items()}}

_IN_NAME = re.compile(
    rf"(?:^|[-._])((?:UD-)?(?:I?Q[1-8](?:_[0-9KA-Z]+)*|(?:{'|'.join(_FORMATS.values())})(?:_MOE)?|FP16))(?=$|[-._])",
    re.IGNORECASE,
)


def from_file_name(stem: str) -> str:
    """The last quantization recipe in a file name (without extension), in upper case; empty if there is none."""
    types = _IN_NAME.findall(stem)
    return str(types[-1]).upper().replace("FP16", "F16") if types else ""


def from_header(file_type: object, type_bytes: Mapping[str, int]) -> str:
    """The recipe named by `general.file_type`, else the tensor type with the most bytes."""
    if isinstance(file_type, int) and file_type in FILE_TYPES:
        return FILE_TYPES[file_type]
    return max(type_bytes, key=lambda t: type_bytes[t], default="")

"""Is vLLM installed, and what would a folder's model take in it?"""

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from devices.errors import TesseraError
from devices.programs import installed_program
from engine.core.errors import BadModelFile
from engine.core.hf_folder import links_root, read_json
from quantize.files.safetensors_file import safe_member

# Ids of its models in the library, and what its runner gets as a path.
PREFIX: Final = "vllm:"
# Keys and values are kept in two bytes a number unless its user asks for less. Source: vLLM, --kv-cache-dtype auto.
_CACHE_VALUE_BYTES: Final = 2
_MOST: Final = 1 << 24


class VllmModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder's files say: bytes of all weights, and of the cache of one token."""

    weights_bytes: int
    token_bytes: int


def executable() -> str | None:
    """The program: TESSERA_VLLM if set, else `vllm` of the search path."""
    named = os.environ.get("TESSERA_VLLM")
    if named:
        return named if Path(named).is_file() else None
    return installed_program("vllm")


def folder_of(path: str) -> Path:
    """The folder of a model that vLLM runs."""
    return Path(path.removeprefix(PREFIX))


def describe(folder: Path) -> VllmModel:
    """Read the folder's configuration. Raises: BadModelFile: it does not say how large a token's cache is."""
    try:
        config = read_json(safe_member(folder, "config.json", links_root(folder)))
    except TesseraError as error:
        raise BadModelFile(str(folder), str(error)) from error
    inner = config.get("text_config")
    text_config = inner if isinstance(inner, dict) else config
    heads = _count(text_config, "num_attention_heads")
    width = _count(text_config, "head_dim") or _count(text_config, "hidden_size") // max(1, heads)
    rows = _count(text_config, "num_hidden_layers") * (_count(text_config, "num_key_value_heads") or heads) * width
    if not rows:
        raise BadModelFile(str(folder), "its config.json does not say how many layers and heads it has")
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return VllmModel(weights_bytes=weights, token_bytes=2 * _CACHE_VALUE_BYTES * rows)


def _count(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST else 0

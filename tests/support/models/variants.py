"""Copies of the bundled model with other weights.

One has a token whose embedding is NaN: only prompts with it fail. Weaker copies mostly agree with the original.
"""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np


def write_poisoned(source: Path, target: Path, token: int) -> None:
    """Set the embedding of `token` to NaN; the head is untied, so that only prompts with `token` are affected."""

    def change(name: str, data: np.ndarray) -> np.ndarray:
        if name == "token_embd.weight":
            data[token] = np.nan
        return data

    _copy(source, target, change, untie=True)


def write_weaker(source: Path, target: Path, noise: float) -> None:
    """Add noise of `noise` standard deviations to every matrix of the layers."""
    rng = np.random.default_rng(1)

    def change(name: str, data: np.ndarray) -> np.ndarray:
        if data.ndim < 2 or not name.startswith("blk."):
            return data
        return (data + noise * data.std() * rng.standard_normal(data.shape)).astype(data.dtype)

    _copy(source, target, change)


def _copy(
    source: Path, target: Path, change: Callable[[str, np.ndarray], np.ndarray], *, untie: bool = False
) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        if untie and tensor.name == "token_embd.weight":
            writer.add_tensor("output.weight", data.copy(), raw_dtype=tensor.tensor_type)
        writer.add_tensor(tensor.name, change(tensor.name, data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

"""A Hugging Face model folder: its configuration and its weights, read in chunks of limited size."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from quantize.convert.low_precision import packed_weights, quantization_settings
from quantize.convert.small_floats import FLOAT_DTYPES, Packed
from quantize.errors import BadFile, BadWeights, IncompleteFile, UnsupportedModel
from quantize.files.byte_source import FileSource
from quantize.files.json_file import read_json
from quantize.files.safetensors_file import SafetensorInfo, links_root, read_safetensors_folder, safe_member

Array = np.ndarray[Any, Any]

# Values of a tensor in memory at a time. With their copies in other types they take some 50 MB.
CHUNK_VALUES = 1 << 21
# Rows of a sample, and of each of its runs.
_SAMPLED_ROWS, _RUN_ROWS = 64, 8
# Configurations are a few kB; tokenizers with 256,000 tokens take about 35 MB.
_MAX_CONFIG_BYTES = 4 * 1024 * 1024
_MAX_TOKENIZER_BYTES = 96 * 1024 * 1024
_DTYPES: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"), "F32": np.dtype("<f4"), "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"), "I8": np.dtype("i1"), "U8": np.dtype("u1"), "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"), "F8_E4M3FNUZ": np.dtype("u1"), "F8_E5M2FNUZ": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"), "U32": np.dtype("<u4"),
}  # fmt: skip


class Checkpoint:
    """Shards and JSON files of one folder. Tensor data is read only on request.

    Weights stored in few bits appear as the floats that they stand for.

    Raises: BadFile, IncompleteFile, Unreadable, RefusedFormat: see safetensors_file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = self.json_file("config.json")
        model = read_safetensors_folder(folder)
        self._where = model.tensors()
        self.file_bytes = model.file_bytes
        self.shards = tuple(Path(f.name) for f in model.files)
        # The tensors of one weight in few bits, which each chunk of its rows needs whole.
        self._expanded, self._whole = "", dict[str, Array]()

    @property
    def names(self) -> tuple[str, ...]:
        packed, parts = self._packed
        stored = {p.stored: name for name, p in packed.items()}
        return tuple(stored.get(n, n) for n in self._where if n in stored or n not in parts)

    @property
    def formats(self) -> dict[str, int]:
        """The number of weights stored in few bits, by format; the most frequent first."""
        return dict(Counter(p.what for p in self._packed[0].values()).most_common())

    @cached_property
    def _packed(self) -> tuple[dict[str, Packed], frozenset[str]]:
        infos = {name: info for name, (_, info) in self._where.items()}
        config = self.config
        if not quantization_settings(config) and (earlier := self.optional_json("quantize_config.json")):
            config = {**config, "quantization_config": earlier}  # as AutoGPTQ once stored its settings
        return packed_weights(str(self.folder), infos, config, self._stored)

    def info(self, name: str) -> SafetensorInfo:
        """A tensor's header entry. Raises: BadFile: no such tensor."""
        if name in self._packed[0]:
            return self._packed[0][name].info
        if name not in self._where:
            raise BadFile(str(self.folder), f"the tensor {name!r} is missing")
        return self._where[name][1]

    def format_of(self, name: str) -> str:
        """The format of few bits in which a tensor is stored; empty for floats."""
        packed = self._packed[0].get(name)
        return packed.what if packed else ""

    @property
    def quantization(self) -> str:
        """The name of the quantization that the configuration states; empty without one."""
        return str(quantization_settings(self.config).get("quant_method") or "")[:40]

    def has(self, name: str) -> bool:
        """Whether the tensor exists."""
        return name in self._packed[0] or name in self._where

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Rows of a tensor viewed as (rows, last extent): F16, F32, or BF16 as 16 bits in uint16.

        Raises: UnsupportedModel: another type. BadWeights: damaged few-bit weights. IncompleteFile: the file
        ends earlier.
        """
        packed = self._packed[0].get(name)
        if packed is None:
            info = self._where[name][1]
            if info.dtype not in FLOAT_DTYPES:
                raise UnsupportedModel(str(self.folder), f"{name} is stored as {info.dtype}")
            return self._read(name, slice(start, stop))
        if name != self._expanded:
            self._expanded, self._whole = name, {}
        try:
            values = packed.rows(slice(start, stop))
        except (IndexError, ValueError) as error:  # numbers of groups and blocks are untrusted
            reason = f"its parts do not fit together ({packed.what}): {str(error)[:200]}"
            raise BadWeights(str(self.folder), name, reason) from error
        if packed.info.dtype == "BF16":
            return f32_to_bf16(values)
        with np.errstate(over="ignore"):  # the converter refuses infinity
            return values.astype(_DTYPES[packed.info.dtype])

    def _stored(self, name: str, part: slice | None) -> Array:
        """Some rows of a stored matrix, or the whole tensor in its shape."""
        if part is not None:
            return self._read(name, part)
        if name not in self._whole:
            info = self._where[name][1]
            width = info.shape[-1] if info.shape else 1
            whole = self._read(name, slice(0, info.num_values // max(1, width)))
            self._whole[name] = whole.reshape(info.shape)
        return self._whole[name]

    def _read(self, name: str, part: slice) -> Array:
        file, info = self._where[name]
        dtype = _DTYPES.get(info.dtype)
        if dtype is None:
            raise UnsupportedModel(str(self.folder), f"{name} is stored as {info.dtype}")
        width = info.shape[-1] if info.shape else 1
        offset = info.offset + part.start * width * dtype.itemsize
        length = (part.stop - part.start) * width * dtype.itemsize
        with FileSource(file.name) as source:
            raw = source.read_at(offset, length)
        if len(raw) != length:
            raise IncompleteFile(file.name, offset + len(raw), offset + length)
        values: Array = np.frombuffer(raw, dtype)
        return values.reshape(part.stop - part.start, width)

    def chunks(self, name: str, stop: int, group: int = 1) -> Iterator[Array]:
        """The first `stop` rows in chunks of about CHUNK_VALUES, each a multiple of `group` rows."""
        width = max(1, self.info(name).shape[-1])
        step = max(group, CHUNK_VALUES // width // group * group)
        for first in range(0, stop, step):
            yield self.rows(name, first, min(stop, first + step))

    def json_file(self, name: str, within: str = "") -> dict[str, Any]:
        """A JSON object in the folder, or in its subfolder `within`.

        Raises: BadFile: missing, too large or invalid.
        """
        path = safe_member(self.folder / within, name, links_root(self.folder))
        if not path.is_file():
            ggufs = sorted(p.name for p in self.folder.glob("*.gguf"))
            hint = f"; for the GGUF model in this folder, name its file: {ggufs[0]}" if ggufs else ""
            raise BadFile(str(self.folder / within), f"{name} is missing{hint}")
        limit = _MAX_TOKENIZER_BYTES if name == "tokenizer.json" else _MAX_CONFIG_BYTES
        return read_json(path, limit)

    def optional_json(self, name: str) -> dict[str, Any]:
        """A JSON object in the folder; empty if the file is missing."""
        return self.json_file(name) if (self.folder / name).is_file() else {}


class SampledCheckpoint(Checkpoint):
    """A folder of which only some rows of each tensor are read: a few runs of neighbours, of an expert only one.

    A recipe permutes only the rows within a group, so it makes the right rows of each run.
    """

    def chunks(self, name: str, stop: int, group: int = 1) -> Iterator[Array]:
        """The sampled runs among the first `stop` rows, each a multiple of `group` rows."""
        count = min(stop, -(-_RUN_ROWS // group) * group)
        runs = 1 if ".experts." in name else max(1, _SAMPLED_ROWS // max(1, count))
        for first in np.unique(np.linspace(0, (stop - count) // group, runs).astype(int)) * group:
            yield self.rows(name, int(first), int(first) + count)


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's part of a configuration, merged into the outer part."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else dict(config)


def bf16_to_f32(values: Array) -> Array:
    """Expand bfloat16, given as uint16, to float32."""
    return (values.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: Array) -> Array:
    """Round float32 to bfloat16 (as uint16), half to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16).astype(np.uint16)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, ((bits >> 16) | 64).astype(np.uint16), rounded)

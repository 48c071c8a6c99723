"""Reads a GGUF model in one or several files: finds the parts and checks that they belong together."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from quantize.errors import BadFile, MissingParts
from quantize.files.gguf_file import GgufFile, TensorInfo, Value, read_gguf

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MAX_PARTS = 512


class SplitName(msgspec.Struct, frozen=True):
    """The components of a name like `stem-00002-of-00005.gguf`; `number` counts from 1."""

    stem: str
    number: int
    count: int

    def part(self, number: int) -> str:
        """File name of another part."""
        return f"{self.stem}-{number:05d}-of-{self.count:05d}.gguf"


def parse_split_name(file_name: str) -> SplitName | None:
    """The components of a split file's name, or None for the name of a whole file."""
    match = _SPLIT_NAME.fullmatch(file_name)
    if match is None:
        return None
    name = SplitName(match["stem"], int(match["number"]), int(match["count"]))
    return name if 1 <= name.number <= name.count <= _MAX_PARTS else None


def model_files(path: Path) -> tuple[Path, ...]:
    """The files of a model; `path` is the only one or the first."""
    name = parse_split_name(path.name)
    return (path,) if name is None else tuple(path.with_name(name.part(n)) for n in range(1, name.count + 1))


def present_files(path: Path) -> tuple[Path, ...]:
    """`model_files`, all of which exist if there are several. Raises: MissingParts."""
    paths = model_files(path)
    missing = tuple(p.name for p in paths if not p.exists())
    if missing and len(paths) > 1:
        raise MissingParts(str(path), sum(p.stat().st_size for p in paths if p.exists()), missing)
    return paths


class GgufModel(msgspec.Struct, frozen=True):
    """All parts of one model; the first part's metadata applies to all."""

    parts: tuple[GgufFile, ...]

    @property
    def metadata(self) -> Mapping[str, Value]:
        return self.parts[0].metadata

    @property
    def architecture(self) -> str:
        return self.parts[0].architecture

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    @property
    def file_bytes(self) -> int:
        return sum(part.file_bytes for part in self.parts)

    def tensors(self) -> list[tuple[GgufFile, TensorInfo]]:
        """Every tensor with the part that holds it, in file order."""
        return [(part, tensor) for part in self.parts for tensor in part.tensors]


def read_gguf_model(path: str | os.PathLike[str]) -> GgufModel:
    """Read the header of a file and, if it is part of a split model, of all other parts in its folder.

    Raises: MissingParts, IncompleteFile: a part or its end is missing. BadFile. Unreadable.
    """
    path = Path(path)
    if parse_split_name(path.name) is None:
        whole = read_gguf(path)
        count = whole.metadata.get("split.count", 1)
        if isinstance(count, int) and count > 1:
            raise BadFile(str(path), f"one of {count} parts, but not named like one (…-00001-of-{count:05d}.gguf)")
        return GgufModel((whole,))
    parts = tuple(read_gguf(p) for p in present_files(path))
    _check(parts, str(path))
    return GgufModel(parts)


def _check(parts: tuple[GgufFile, ...], path: str) -> None:
    names: set[str] = set()
    total = 0
    for index, part in enumerate(parts):
        if part.metadata.get("split.count", 1 if len(parts) == 1 else None) != len(parts):
            raise BadFile(part.name, f"split.count is not {len(parts)}")
        if part.metadata.get("split.no", 0 if len(parts) == 1 else None) != index:
            raise BadFile(part.name, f"split.no is not {index}")
        total += len(part.tensors)
        names.update(tensor.name for tensor in part.tensors)
    if len(names) != total:
        raise BadFile(path, "two parts hold a tensor of the same name")
    expected = parts[0].metadata.get("split.tensors.count", total)
    if expected != total:
        raise BadFile(path, f"{total} tensors in all parts, {expected} announced")

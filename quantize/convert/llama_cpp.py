"""Prepares input for llama.cpp's own converter: its list of architectures, and a folder without programs.

The converter runs in engine.library.converter. `assets/converter/architectures.txt` is the list of the pinned
source archive, read from it by `architectures_in`.
"""

import ast
import functools
from pathlib import Path
from typing import Final

import msgspec

from quantize.convert.checkpoint import Checkpoint
from quantize.errors import BadFile, UnsupportedModel
from quantize.files.json_file import read_json
from quantize.files.safetensors_file import links_root, safe_member

ASSETS: Final = Path(__file__).resolve().parents[2] / "assets" / "converter"
# The name of the table in llama.cpp's conversion/__init__.py.
_TABLE: Final = "TEXT_MODEL_MAP"
# Files that describe a model; other files of a folder (programs, pickles, images) are not copied.
_SUFFIXES: Final = frozenset({".json", ".jinja", ".model", ".safetensors", ".tiktoken", ".txt"})
# Files that may name a publisher's program under this key.
_DESCRIBING: Final = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
_PROGRAMS: Final = "auto_map"
_MAX_JSON_BYTES: Final = 4 * 1024 * 1024
_MAX_FILES: Final = 2000


def architectures_in(source: str) -> tuple[str, ...]:
    """The language model architectures that a conversion/__init__.py registers; the file is not executed.

    Raises: ValueError: it contains no such table.
    """
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == _TABLE:
            table = ast.literal_eval(node.value) if node.value is not None else None
            if isinstance(table, dict) and all(isinstance(name, str) for name in table):
                return tuple(sorted(table))
    raise ValueError(f"there is no table {_TABLE} of names")


@functools.cache
def supported_architectures() -> frozenset[str]:
    """The architectures of the pinned converter."""
    return frozenset((ASSETS / "architectures.txt").read_text(encoding="ascii").split())


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """A folder made of links and small copies; `reads` are the folders behind the links."""

    folder: Path
    reads: tuple[Path, ...]
    weight_bytes: int
    notes: tuple[str, ...]


def stage(source: Path, into: Path) -> Staged:
    """Create in `into` the files that the converter may read: no programs, no pickles, no links outside.

    Raises: BadFile, IncompleteFile, RefusedFormat, Unreadable: the folder is invalid. UnsupportedModel: its
    tokenizer is a publisher's program.
    """
    checked = Checkpoint(source)
    notes = []
    reads = set()
    into.mkdir(parents=True)
    files = sorted(p for p in source.iterdir() if p.is_file())
    if len(files) > _MAX_FILES:
        raise BadFile(str(source), f"{len(files)} files; at most {_MAX_FILES} are looked at")
    for file in files:
        if file.name in _DESCRIBING:
            if _copied(source, file.name, into):
                notes.append(f"{file.name} names a program of the publisher's: it was left out")
        elif file.suffix.lower() in _SUFFIXES:
            real = safe_member(source, file.name).resolve()
            (into / file.name).symlink_to(real)
            reads.add(real.parent)
        elif file.suffix == ".py":
            notes.append(f"{file.name} was not run")
    _pooling(source, into)
    return Staged(folder=into, reads=tuple(sorted(reads)), weight_bytes=checked.file_bytes, notes=tuple(notes))


def _copied(source: Path, name: str, into: Path) -> bool:
    """Copy a description without the programs that it names; returns whether it named any."""
    config = read_json(safe_member(source, name), _MAX_JSON_BYTES)
    programs = config.pop(_PROGRAMS, None)
    if (
        programs
        and name == "tokenizer_config.json"
        and not any((source / file).is_file() for file in ("tokenizer.json", "tokenizer.model"))
    ):
        raise UnsupportedModel(
            str(source), "its tokenizer is a program of the publisher's, and no other code is run"
        )
    (into / name).write_bytes(msgspec.json.encode(config))
    return bool(programs)


def _pooling(source: Path, into: Path) -> None:
    """Copy an embedding model's pooling, which sentence-transformers stores in a separate folder."""
    for config in sorted(source.glob("*_Pooling/config.json")):
        name = config.parent.name
        if config.resolve().is_relative_to(links_root(source).resolve()):
            (into / name).mkdir()
            (into / name / config.name).write_bytes(msgspec.json.encode(read_json(config, _MAX_JSON_BYTES)))

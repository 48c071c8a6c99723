"""Finds models in a folder in one walk, without opening files."""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.library.types import Format, ModelFile
from engine.onnx.folder import OPENVINO_GRAPHS
from quantize.files.gguf_split import parse_split_name

_log = logging.getLogger(__name__)
SUFFIXES = (".gguf", ".safetensors", ".onnx", ".json", ".data", "_data", ".bin", ".xml")
_MAX_DEPTH = 8
_MAX_FILES = 200_000


class Candidate(msgspec.Struct, frozen=True):
    """Files that look like one model. `key` (the folder or the first file) identifies it across scans.

    `title` is a better name than the file's own; `expected` maps file name to the sha256 that its owner recorded.
    """

    format: Format
    key: str
    files: tuple[ModelFile, ...]
    folder: str | None = None
    missing: tuple[str, ...] = ()
    title: str | None = None
    projector: str | None = None
    expected: dict[str, str] = msgspec.field(default_factory=dict)


def model_file(path: Path) -> ModelFile:
    """Size and modification time of a file. Raises: OSError."""
    info = path.stat()
    return ModelFile(path=str(path), size_bytes=info.st_size, mtime_ns=info.st_mtime_ns)


def find_models(root: Path) -> Iterator[Candidate]:
    """All models below `root`. Hidden folders are skipped and links to folders are not followed."""
    budget = _MAX_FILES
    pending = [(root, 0)]
    while pending:
        folder, depth = pending.pop()
        files: dict[str, ModelFile] = {}
        try:
            with os.scandir(folder) as entries:
                for item in entries:
                    budget -= 1
                    if budget < 0:
                        return
                    if item.name.startswith("."):
                        continue
                    if item.is_dir(follow_symlinks=False):
                        if depth < _MAX_DEPTH:
                            pending.append((Path(item.path), depth + 1))
                    elif item.name.lower().endswith(SUFFIXES):
                        _note(item, files)
        except OSError:
            continue  # unreadable or deleted during the walk: the catalogue keeps its entries
        yield from group(folder, files)


def _note(item: "os.DirEntry[str]", files: dict[str, ModelFile]) -> None:
    try:
        info = item.stat()
    except OSError:
        return  # a dangling link
    if not item.path.isprintable() and not _is_text(item.path):
        _log.warning("passed over: its path is not valid text: %r", item.path)
    elif stat.S_ISREG(info.st_mode):
        files[item.name] = ModelFile(path=item.path, size_bytes=info.st_size, mtime_ns=info.st_mtime_ns)


def _is_text(path: str) -> bool:
    """Return whether a path can be encoded as UTF-8 (undecodable bytes become lone surrogates)."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def group(folder: Path, files: dict[str, ModelFile]) -> Iterator[Candidate]:
    """The models formed by the files of one folder."""
    shards = tuple(files[name] for name in sorted(files) if name.endswith(".safetensors"))
    if "config.json" in files and shards:
        yield Candidate("safetensors", str(folder), shards, str(folder))
    graphs = tuple(files[name] for name in sorted(files) if name.endswith(".onnx"))
    if graphs and ("genai_config.json" in files or {"config.json", "tokenizer.json"} <= files.keys()):
        weights = tuple(files[name] for name in sorted(files) if name.endswith((".data", "_data", ".bin")))
        yield Candidate("onnx", str(folder), (*graphs, *weights), str(folder))
    elif "config.json" in files and not shards and OPENVINO_GRAPHS & files.keys():  # listed with its needs
        compiled = tuple(files[name] for name in sorted(files) if name.endswith((".xml", ".bin")))
        yield Candidate("onnx", str(folder), compiled, str(folder))
    for name in sorted(files):
        if not name.lower().endswith(".gguf"):
            continue
        split = parse_split_name(name)
        if split is None:
            yield Candidate("gguf", files[name].path, (files[name],))
            continue
        parts = [split.part(number) for number in range(1, split.count + 1)]
        if name == next(p for p in parts if p in files):
            present = tuple(files[p] for p in parts if p in files)
            missing = tuple(p for p in parts if p not in files)
            yield Candidate("gguf", str(folder / parts[0]), present, missing=missing)


def candidate_at(path: Path) -> Candidate | None:
    """The model at a path that the user named, or None if there is none. Raises: OSError."""
    path.stat()  # raise "No such file" instead of reporting "not a model"
    folder = path if path.is_dir() else path.parent
    files: dict[str, ModelFile] = {}
    with os.scandir(folder) as entries:
        for item in entries:
            _note(item, files)
    for candidate in group(folder, files):
        if candidate.folder == str(path) or any(f.path == str(path) for f in candidate.files):
            return candidate
    return None

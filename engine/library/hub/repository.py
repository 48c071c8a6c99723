"""A repository on a hub as plain records, and the choices of quantization it offers."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec

from engine.library import quant_names
from engine.library.naming import stem_of
from quantize.files.gguf_split import parse_split_name

_MAX_NAME_BYTES = 200
_MAX_DEPTH = 8
# Reserved on Windows whatever the extension.
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


class RepoHit(msgspec.Struct, frozen=True, kw_only=True):
    """One repository in a list of search results; unknown numbers are None."""

    repo: str
    downloads: int
    likes: int
    gated: bool
    task: str | None = None
    updated: str | None = None
    architecture: str | None = None
    n_params: int | None = None
    context_train: int | None = None
    license: str | None = None


_SMALL_BYTES = 1 << 20


class RepoFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file: `sha256` is the promise for large files, `git_sha1` (of the git blob) for small ones."""

    name: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One model the repository offers: a quantization in one file or several, or a folder of safetensors."""

    label: str
    format: str
    files: tuple[RepoFile, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """All safely named files of a repository at one commit (`revision`)."""

    repo: str
    endpoint: str
    revision: str
    files: tuple[RepoFile, ...]
    license: str | None = None
    gated: bool = False
    tags: tuple[str, ...] = ()
    base_models: tuple[str, ...] = ()

    def choices(self) -> tuple[Choice, ...]:
        """GGUF quantizations, smallest first, then the safetensors folder if there is one."""
        groups: dict[str, list[RepoFile]] = {}
        for file in self.files:
            path = PurePosixPath(file.name)
            if path.suffix == ".gguf" and not is_projector(path.name):
                groups.setdefault(str(path.with_name(stem_of(path.name))), []).append(file)
        whole = {stem: files for stem, files in groups.items() if _complete(files)}
        ggufs = [
            Choice(label=label, format="gguf", files=tuple(sorted(whole[stem], key=lambda f: f.name)))
            for stem, label in _labels(whole).items()
        ]
        return (*sorted(ggufs, key=lambda c: c.size_bytes), *self._safetensors())

    def projectors(self) -> tuple[RepoFile, ...]:
        """Vision projectors, smallest first."""
        found = [f for f in self.files if f.name.endswith(".gguf") and is_projector(PurePosixPath(f.name).name)]
        return tuple(sorted(found, key=lambda f: f.size_bytes))

    def generation_config(self) -> tuple[RepoFile, ...]:
        """The publisher's sampling, a small file that GGUF files of the repository are kept with."""
        return tuple(f for f in self.files if f.name == "generation_config.json" and f.size_bytes < _SMALL_BYTES)

    def _safetensors(self) -> tuple[Choice, ...]:
        shards = [f for f in self.files if "/" not in f.name and f.name.endswith(".safetensors")]
        if not shards or not any(f.name == "config.json" for f in self.files):
            return ()
        texts = [
            f for f in self.files if "/" not in f.name and f.name.endswith((".json", ".jinja", ".model", ".txt"))
        ]
        return (Choice(label="safetensors", format="safetensors", files=(*shards, *texts)),)


def is_projector(file_name: str) -> bool:
    """Whether a GGUF file is, by its name, the vision half of another model."""
    return "mmproj" in file_name.lower()


def is_safe_name(name: str) -> bool:
    """Whether a name given by a stranger may become a path below our own folder, on every system."""
    parts = name.split("/")
    return (
        len(parts) <= _MAX_DEPTH
        and len(name.encode(errors="replace")) <= _MAX_NAME_BYTES
        and all(
            part
            and part.isprintable()
            and part == part.strip()
            and not part.startswith(("..", "~"))
            and not part.endswith(".")
            and not any(c in part for c in '\\:*?"<>|')
            and not _DEVICES.fullmatch(part)
            and part.encode(errors="replace").decode() == part
            for part in parts
        )
        and parts != ["."]
    )


def _complete(files: list[RepoFile]) -> bool:
    splits = [parse_split_name(PurePosixPath(file.name).name) for file in files]
    if splits[0] is None:
        return len(files) == 1
    return {s.number for s in splits if s} == set(range(1, splits[0].count + 1))


def _labels(stems: Iterable[str]) -> dict[str, str]:
    """A short label for each: the announced mix where that is unique, else the file's name."""
    stems = list(stems)
    named = {stem: quant_names.from_file_name(PurePosixPath(stem).name) for stem in stems}
    return {
        stem: label if label and list(named.values()).count(label) == 1 else PurePosixPath(stem).name
        for stem, label in named.items()
    }

"""The quantizations that a repository on a hub offers."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from engine.library import model_ids
from engine.library.hub.types import QuantVariant, RepoFile, Repository
from engine.library.model_ids import stem_of
from quantize.files.gguf_split import parse_split_name

_MAX_NAME_BYTES = 200
_MAX_DEPTH = 8
# Reserved names on Windows, with any extension.
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_SMALL_BYTES = 1 << 20


def choices_of(repository: Repository) -> tuple[QuantVariant, ...]:
    """GGUF quantizations, smallest first, then the safetensors folder if there is one."""
    groups: dict[str, list[RepoFile]] = {}
    for file in repository.files:
        path = PurePosixPath(file.name)
        if path.suffix == ".gguf" and not is_projector(path.name):
            groups.setdefault(str(path.with_name(stem_of(path.name))), []).append(file)
    whole = {stem: files for stem, files in groups.items() if _complete(files)}
    ggufs = [
        QuantVariant(label=label, format="gguf", files=tuple(sorted(whole[stem], key=lambda f: f.name)))
        for stem, label in _labels(whole).items()
    ]
    return (*sorted(ggufs, key=lambda c: c.size_bytes), *_safetensors(repository))


def projectors_of(repository: Repository) -> tuple[RepoFile, ...]:
    """Vision projectors, smallest first."""
    projectors = [
        f for f in repository.files if f.name.endswith(".gguf") and is_projector(PurePosixPath(f.name).name)
    ]
    return tuple(sorted(projectors, key=lambda f: f.size_bytes))


def generation_config_of(repository: Repository) -> tuple[RepoFile, ...]:
    """The publisher's sampling settings, a small file that is stored with the repository's GGUF files."""
    return tuple(f for f in repository.files if f.name == "generation_config.json" and f.size_bytes < _SMALL_BYTES)


def _safetensors(repository: Repository) -> tuple[QuantVariant, ...]:
    shards = [f for f in repository.files if "/" not in f.name and f.name.endswith(".safetensors")]
    if not shards or not any(f.name == "config.json" for f in repository.files):
        return ()
    texts = [
        f for f in repository.files if "/" not in f.name and f.name.endswith((".json", ".jinja", ".model", ".txt"))
    ]
    return (QuantVariant(label="safetensors", format="safetensors", files=(*shards, *texts)),)


def is_projector(file_name: str) -> bool:
    """Return whether a GGUF file is, by its name, a vision projector."""
    return "mmproj" in file_name.lower()


def is_safe_name(name: str) -> bool:
    """Return whether an untrusted name may become a path below the library's folder, on every system.

    Hidden names are for Tessera's own files, such as the note with the expected hashes of a folder.
    """
    parts = name.split("/")
    return (
        len(parts) <= _MAX_DEPTH
        and len(name.encode(errors="replace")) <= _MAX_NAME_BYTES
        and all(
            part
            and part.isprintable()
            and part == part.strip()
            and not part.startswith((".", "~"))
            and not part.endswith(".")
            and not any(c in part for c in '\\:*?"<>|')
            and not _DEVICES.fullmatch(part)
            and part.encode(errors="replace").decode() == part
            for part in parts
        )
    )


def _complete(files: list[RepoFile]) -> bool:
    splits = [parse_split_name(PurePosixPath(file.name).name) for file in files]
    if splits[0] is None:
        return len(files) == 1
    return {s.number for s in splits if s} == set(range(1, splits[0].count + 1))


def _labels(stems: Iterable[str]) -> dict[str, str]:
    """A short label for each: the quantization recipe in the name if that is unique, else the file name."""
    stems = list(stems)
    labels = {stem: model_ids.from_file_name(PurePosixPath(stem).name) for stem in stems}
    return {
        stem: label if label and list(labels.values()).count(label) == 1 else PurePosixPath(stem).name
        for stem, label in labels.items()
    }


# The first paragraph of a model card, as plain text.

_LEAST_WORDS, _MOST_CHARS = 6, 280
# A longer block is no paragraph of prose; the time for the patterns grows with the square of its length.
_MOST_BLOCK_CHARS = 4000
_FRONT_MATTER = re.compile(r"\A\s*---\r?\n.*?\n---\s*\n", re.DOTALL)
_NO_PROSE = re.compile(r"(?:#|<|>|\||```|~~~|[-*+] |\d+[.)] |\[!|!\[|\[\]\()")
_IMAGE, _LINK = re.compile(r"!\[[^\]]*\]\([^)]*\)"), re.compile(r"\[([^\]]*)\]\([^)]*\)")
_TAG, _MARK = re.compile(r"<[^>]*>"), re.compile(r"[*_`]{1,3}")


def first_paragraph(card: str) -> str:
    """The first paragraph of prose, without markup and at most some lines long; "" if there is none."""
    for block in re.split(r"\n\s*\n", _FRONT_MATTER.sub("", card)):
        if len(block) > _MOST_BLOCK_CHARS or _NO_PROSE.match(block.strip()):
            continue
        plain = _MARK.sub("", _TAG.sub("", _LINK.sub(r"\1", _IMAGE.sub("", block))))
        words = "".join(c if c.isprintable() else " " for c in plain).split()
        text = " ".join(words)
        if len(words) >= _LEAST_WORDS:
            return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS].rsplit(' ', 1)[0]}…"
    return ""

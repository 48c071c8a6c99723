"""The origin of a model: read from the note of a download, derived for all other models."""

import logging
from pathlib import Path, PurePosixPath

import msgspec

from devices.msgspec_lock import learned
from engine.core.paths import BUNDLED_MODELS, Paths, installed_models, is_installed
from engine.library.types import Origin, OriginKind
from quantize.files.gguf_split import parse_split_name
from quantize.files.provenance import report_path as _report_path

_log = logging.getLogger(__name__)
NOTE_NAME = ".tessera.json"
_MAX_NOTE_BYTES = 4 * 1024 * 1024


class DownloadNote(msgspec.Struct, frozen=True, kw_only=True):
    """The note in a downloaded repository's folder; `sha256` maps file name to the verified hash."""

    repo: str
    revision: str
    endpoint: str
    license: str | None = None
    sha256: dict[str, str] = {}


def read_note(folder: Path) -> DownloadNote | None:
    """The note of a folder, or None if there is none or it is unreadable."""
    path = folder / NOTE_NAME
    try:
        if path.stat().st_size > _MAX_NOTE_BYTES:
            return None
        return msgspec.json.decode(path.read_bytes(), type=learned(DownloadNote))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("unreadable download note path=%s error=%s", path, error)
        return None


def adjacent_report(path: Path) -> str | None:
    """Path of Tessera's quantization report for this file, or None."""
    report = _report_path(path)
    return str(report) if path.suffix == ".gguf" and report.is_file() else None


def adjacent_card(path: Path) -> Path | None:
    """The model card of a model that came with the installation."""
    card = path.with_suffix(".md")
    return card if is_installed(path) and card.is_file() else None


def card_title(card: Path) -> str:
    """The model's display name: the card's first heading, up to a colon."""
    with card.open(encoding="utf-8") as file:
        return file.readline().removeprefix("#").partition(":")[0].strip()


def of(path: Path, paths: Paths, app: str | None) -> Origin:
    """The origin of the model at `path` (a file or a folder)."""
    if path.is_relative_to(BUNDLED_MODELS):
        return Origin(kind="bundled")
    if path.is_relative_to(installed_models()):
        return _from_note(read_note(path.parent), path, "installed")
    if app is not None or not path.is_relative_to(paths.models):
        return Origin(kind="linked", app=app, repo=_cache_repository(path))
    note = _note_above(path, paths.models)
    if note is None:
        return Origin(kind="built" if adjacent_report(path) else "file")
    return _from_note(note, path, "hub")


def _from_note(note: DownloadNote | None, path: Path, kind: OriginKind) -> Origin:
    if note is None:
        return Origin(kind=kind)
    split = parse_split_name(path.name)
    names = {path.name} if split is None else {split.part(n) for n in range(1, split.count + 1)}
    promised = {PurePosixPath(name).name: sha for name, sha in note.sha256.items()}
    expected = {name: sha for name, sha in promised.items() if name in names or path.is_dir()}
    return Origin(kind=kind, repo=note.repo, revision=note.revision, expected=expected)


def _note_above(path: Path, models: Path) -> DownloadNote | None:
    """The note of the file's repository; quantizations often have separate folders."""
    for folder in (path, *path.parents):
        if folder == models:
            return None
        note = read_note(folder)
        if note is not None:
            return note
    return None


def _cache_repository(path: Path) -> str | None:
    """`owner/name` if the path is in a Hugging Face cache folder."""
    for parent in path.parents:
        if parent.name.startswith("models--"):
            return parent.name.removeprefix("models--").replace("--", "/", 1)
    return None

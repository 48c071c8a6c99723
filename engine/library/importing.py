"""Imports models: copies them into the library's folder, or links them in place."""

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Final

from devices.atomic_file import unfinished
from devices.errors import TesseraError
from engine.core.errors import BadModelFile, InputFault, exhausted, reason_for
from engine.jobs.jobs import JobContext
from engine.library import other_apps
from engine.library.catalogue import Catalogue, Changes
from engine.library.errors import CannotWrite, NotEnoughDisk
from engine.library.scan import candidate_at
from engine.library.types import LinkedFolder, ModelEntry, Origin, Unlinked
from engine.message_catalog.reasons import because
from quantize.files.safetensors_file import links_root, refuse_pickle

_CHUNK_BYTES = 4 * 1024 * 1024
# Folders that are scanned in place.
MAX_FOLDERS: Final = 1000
RESERVE_BYTES = 256 * 1024 * 1024
_COMPANIONS = (".json", ".jinja", ".model", ".txt", "_data", ".data")
# sentence-transformers stores the pooling configuration of an embedding model one folder deeper.
_POOLING = "1_Pooling/config.json"


def import_copy(catalogue: Catalogue, path: Path, control: JobContext) -> ModelEntry:
    """Copy a file (all parts of a split one) or a model folder into the models folder and list it.

    If the library already has a model with the same content, that model is returned and nothing is copied.
    The headers are checked before copying starts, and a copy gets its final name only when it is complete.

    Raises: BadModelFile, NotEnoughDisk, CannotWrite; Cancelled and Paused from `control` (no file is left then).
    """
    path = path.absolute()
    files, folder = _members(path)
    catalogue.check(path)
    same = _same_content(catalogue, files, folder, control)
    if same is not None:
        return same
    target = catalogue.paths.models / "local" / (folder.name if folder else path.stem)
    total = sum(file.stat().st_size for file in files)
    try:
        with unfinished(catalogue.paths.models / ".partial" / f"import-{target.name}") as staging:
            target = _copy_all(files, folder, staging, target, control)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise NotEnoughDisk(str(target), total, shutil.disk_usage(target.anchor).free) from error
        raise CannotWrite(str(target), error.strerror or str(error)) from error
    return catalogue.add(target if folder else target / files[0].name, Origin(kind="file"))


def _copy_all(files: list[Path], folder: Path | None, staging: Path, target: Path, control: JobContext) -> Path:
    """Copy into `staging` and rename it to `target`, or to a free name like it, which is returned."""
    total = sum(file.stat().st_size for file in files)
    staging.mkdir()
    free = shutil.disk_usage(staging).free
    if total + RESERVE_BYTES > free:
        raise NotEnoughDisk(str(staging.parent.parent), total + RESERVE_BYTES, free)
    done = 0
    for file in files:
        inside = staging / (file.relative_to(folder) if folder else file.name)
        inside.parent.mkdir(exist_ok=True)
        done = copy_file(file, inside, control, done, total)
    target = _free_name(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging.rename(target)
    return target


def _same_content(
    catalogue: Catalogue, files: list[Path], folder: Path | None, control: JobContext
) -> ModelEntry | None:
    """A model in the library with the same bytes. Linked models do not count: their application may delete them."""
    for entry in catalogue.entries():
        if entry.state != "online" or entry.origin.kind == "linked" or (entry.folder is None) != (folder is None):
            continue
        if folder is not None:
            others = [Path(str(entry.folder)) / file.relative_to(folder) for file in files]
        else:
            others = [Path(file.path) for file in entry.files]
        with contextlib.suppress(OSError):  # a file may have disappeared
            sizes = [(one.stat().st_size, other.stat().st_size) for one, other in zip(files, others, strict=False)]
            if len(others) != len(files) or any(one != other for one, other in sizes):
                continue
            total, done = sum(size for size, _ in sizes), 0
            for one, other in zip(files, others, strict=True):
                if not _same_bytes(one, other, control, done, total):
                    break
                done += one.stat().st_size
            else:
                return entry
    return None


def _same_bytes(one: Path, other: Path, control: JobContext, done: int, total: int) -> bool:
    with one.open("rb") as first, other.open("rb") as right:
        while chunk := first.read(_CHUNK_BYTES):
            control.check()
            if chunk != right.read(_CHUNK_BYTES):
                return False
            done += len(chunk)
            control.report("verifying", done, total)
    return True


def link(catalogue: Catalogue, where: str) -> tuple[Changes, ModelEntry | None]:
    """Use models in place: a file, a folder of models, or the name of an application (see other_apps.APPS).

    Raises: InputFault: nothing exists there; BadModelFile: the file is not a model.
    """
    if where in other_apps.APPS:
        folders = [folder for folder in other_apps.present() if folder.app == where]
        if not folders:
            raise InputFault(because("no_app_folder", app=where), "path")
        for folder in folders:
            catalogue.store.watch(str(folder.path), where)
        return catalogue.refresh(), None
    path = Path(where).expanduser().absolute()
    if path.is_file():
        return Changes(), catalogue.add(path)
    if not path.is_dir():
        raise InputFault(because("nothing_at_path", path=str(path), apps=tuple(other_apps.APPS)), "path")
    if str(path) not in (watched := catalogue.store.folders()) and len(watched) >= MAX_FOLDERS:
        raise InputFault(because("too_many_folders", most=MAX_FOLDERS), "path")
    own = next((f.app for f in other_apps.present() if f.path.resolve() == path.resolve()), None)
    catalogue.store.watch(str(path), own)
    return catalogue.refresh(), None


def linked_folders(catalogue: Catalogue) -> tuple[LinkedFolder, ...]:
    """The linked folders, each with the number of its models."""
    keys = [key for key, entry in catalogue.store.entries().items() if not entry.details.is_projector]
    return tuple(
        LinkedFolder(
            path=folder,
            app=app or "",
            models=sum(Path(key).is_relative_to(folder) for key in keys),
            is_here=Path(folder).is_dir(),
        )
        for folder, app in catalogue.store.folders().items()
    )


def unlink(catalogue: Catalogue, where: str) -> Unlinked:
    """Stop scanning a linked folder, or all linked folders of an application, and forget their models. Files stay.

    Models that are also in a folder that is still scanned are kept. Linking the folder again also shows models that
    the user had removed. Raises: InputFault: no such folder is linked.
    """
    linked = catalogue.store.folders()
    if where in other_apps.APPS:
        folders = [folder for folder, app in linked.items() if app == where]
    else:
        path = Path(where).expanduser()
        same = [folder for folder in linked if Path(folder) == path]
        folders = same or [
            folder for folder in linked if path.is_absolute() and Path(folder).resolve() == path.resolve()
        ]
    if not folders:
        reason = (
            because("folder_not_linked", path=where, linked=tuple(linked))
            if linked
            else because("no_linked_folder")
        )
        raise InputFault(reason, "where")
    store = catalogue.store
    with store.writing():
        for folder in folders:
            store.unwatch(folder)
        others = [root for root, _ in catalogue.roots()]

        def is_gone(key: str) -> bool:
            path = Path(key)
            return any(map(path.is_relative_to, folders)) and not any(map(path.is_relative_to, others))

        unlinked = {key: entry for key, entry in store.entries().items() if is_gone(key)}
        for key in unlinked:
            store.forget(key)
        for key in filter(is_gone, store.hidden()):
            store.hide(key, hidden=False)
    removed = tuple(entry.id for entry in unlinked.values() if not entry.details.is_projector)
    return Unlinked(folders=tuple(folders), removed=removed)


def _members(path: Path) -> tuple[list[Path], Path | None]:
    try:
        if path.is_file():
            refuse_pickle(path)
        candidate = candidate_at(path)
    except TesseraError as error:
        raise exhausted(error) or BadModelFile(str(path), reason_for(error)) from error
    except OSError as error:
        raise exhausted(error) or BadModelFile(str(path), error.strerror or str(error)) from error
    if candidate is None:
        raise BadModelFile(str(path), because("no_model_there"))
    files = [Path(file.path) for file in candidate.files]
    if candidate.folder is not None:
        root = links_root(Path(candidate.folder))
        strange = next((file for file in files if not _inside(file, root)), None)
        if strange is not None:
            raise BadModelFile(str(path), because("leads_out", name=strange.name))
    if candidate.folder is None:
        return files, None
    folder = Path(candidate.folder)
    root = links_root(folder)
    # A hidden note could state a false origin.
    visible = (p for p in sorted(folder.iterdir()) if not p.name.startswith("."))
    companions = (p for p in visible if p.name.endswith(_COMPANIONS) and _inside(p, root))
    deeper = [folder / _POOLING] if _inside(folder / _POOLING, root) else []
    return [*files, *(p for p in companions if p not in files), *deeper], folder


def _inside(path: Path, root: Path) -> bool:
    """Return whether a file's links stay in the model's folder: a copy must not contain other local files."""
    return path.is_file() and path.resolve().is_relative_to(root.resolve())


def copy_file(source: Path, target: Path, control: JobContext, done: int, total: int) -> int:
    """Copy a file with its times to a new one; `done` of `total` bytes of the job were copied before.

    Returns the bytes copied then. Raises: OSError; Paused and Cancelled from `control`.
    """
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            control.check()
            writer.write(chunk)
            done += len(chunk)
            control.report("copying", done, total)
        writer.flush()
        with contextlib.suppress(OSError):  # not all file systems support it; a scan would notice a loss
            os.fsync(writer.fileno())
    shutil.copystat(source, target)
    return done


def _free_name(target: Path) -> Path:
    number, free = 2, target
    while free.exists():
        free = target.with_name(f"{target.name}-{number}")
        number += 1
    return free

"""Moves the models folder to another place. A kill at any moment loses nothing: the job continues from there."""

import contextlib
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from devices.msgspec_lock import learned
from engine.core.errors import Cancelled, InputFault
from engine.core.paths import Paths
from engine.jobs.jobs import JobContext, JobKind, JobRegistry, Paused, params_of
from engine.library.catalogue import Catalogue
from engine.library.errors import CannotWrite, NotEnoughDisk
from engine.library.importing import RESERVE_BYTES, copy_file
from engine.library.trash import TICKET, Trash, is_inside
from engine.library.types import Moved
from engine.message_catalog.reasons import because

_log = logging.getLogger(__name__)
_JOURNAL = ".moving.jsonl"
_MAX_JOURNAL_BYTES = 64 << 20
_SAME_TIME_NS = 2_000_000_000  # the resolution of FAT
_WAIT_S = 0.5
# Jobs that write into the models folder.
WRITERS = frozenset({JobKind.PULL, JobKind.IMPORT, JobKind.CONVERT, JobKind.QUANTIZE})


# Stores the new folder in the settings; None only checks that this is possible.
Keep = Callable[[Path | None], None]


class MoveTask(msgspec.Struct, frozen=True, kw_only=True):
    """Move the models from one folder to another."""

    source: str
    target: str


class Switch(msgspec.Struct, frozen=True):
    """Hooks of the server for the moment in which the new folder replaces the old one.

    `busy`: whether a model of that folder answers, or another job writes into it. `keep` stores the new folder in
    the settings (None: only check that it could). `unload` unloads the idle models of the old folder, and returns
    whether others are left.
    """

    busy: Callable[[Path], bool]
    keep: Keep
    unload: Callable[[Path], bool]


def register(registry: JobRegistry, open_catalogue: Callable[[], Catalogue], switch: Switch) -> None:
    """Register the job `move`, one at a time."""

    def run(task: MoveTask, control: JobContext) -> Moved:
        with closing(open_catalogue()) as catalogue:
            return move(catalogue, task, control, switch)

    registry.register(JobKind.MOVE, run, read=params_of(MoveTask))


def folder_is_fixed(variable: str) -> InputFault:
    """The error that `Keep` raises if an environment variable sets the folder."""
    return InputFault(because("folder_is_fixed", variable=variable), "path")


def check(paths: Paths, target: Path, keep: Keep) -> MoveTask:
    """The task that moves the models folder to `target`.

    Raises: InputFault: the folder is not empty, is the old one or inside it, or the settings cannot change;
    NotEnoughDisk, CannotWrite.
    """
    source, target = paths.models.absolute(), target.absolute()
    if target.resolve() == source.resolve():
        earlier = Path(_journal_source(target))
        if earlier.is_dir() and earlier.is_absolute():  # the program ended before the old files were deleted
            return MoveTask(source=str(earlier), target=str(target))
        raise InputFault(because("models_are_there", path=str(target)), "path")
    if target.resolve().is_relative_to(source.resolve()):
        raise InputFault(because("folder_within", path=str(target), models=str(source)), "path")
    if target.exists() and not target.is_dir():
        raise InputFault(because("not_a_folder", path=str(target)), "path")
    if target.is_dir() and any(target.iterdir()) and _journal_source(target) != str(source):
        raise InputFault(because("folder_not_empty", path=str(target), name=str(target / "models")), "path")
    keep(None)
    try:
        target.mkdir(parents=True, exist_ok=True)
        _append(target, None, source)
        if not _can_link(source, target):
            needed, free = _size(source) + RESERVE_BYTES, shutil.disk_usage(target).free
            if needed > free:
                _discard(target)
                raise NotEnoughDisk(str(target), needed, free)
    except OSError as error:
        raise CannotWrite(str(target), error.strerror or str(error)) from error
    return MoveTask(source=str(source), target=str(target))


def move(catalogue: Catalogue, task: MoveTask, control: JobContext, switch: Switch) -> Moved:
    """Copy everything (on the same drive: link it), switch to the new folder, then delete the old files.

    Until the switch, the old folder is the one in use, and a cancelled job deletes its copies. After the switch the
    job runs to its end.

    Raises: InputFault: the setting was changed meanwhile; CannotWrite, NotEnoughDisk; Paused and Cancelled from
    `control`.
    """
    source, target = Path(task.source), Path(task.target)
    now = catalogue.paths.models.resolve()
    try:
        if now != target.resolve():
            try:
                control.check()
                if now != source.resolve():
                    raise InputFault(because("folder_changed", path=str(now)), "path")
                _copy_until_idle(source, target, control, switch)
            except Cancelled:
                _discard(target)
                raise
            switch.keep(target)
            catalogue.paths.models = target
            _log.info("models folder moved from=%s to=%s", source, target)
        return _leave(catalogue, source, target, control, switch)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise NotEnoughDisk(str(target), _size(source), shutil.disk_usage(target).free) from error
        raise CannotWrite(str(error.filename or target), error.strerror or str(error)) from error


def _copy_until_idle(source: Path, target: Path, control: JobContext, switch: Switch) -> None:
    """Copy, then copy again what changed meanwhile, until nothing changes and nothing uses the old folder."""
    target.mkdir(parents=True, exist_ok=True)
    while True:
        copied = _mirror(source, target, control)
        if not copied and not switch.busy(source):
            return
        if switch.busy(source):
            control.report("waiting", 0, 0, note=because("models_busy"))
            control.wait(_WAIT_S)


def _mirror(source: Path, target: Path, control: JobContext) -> int:
    """Synchronize the target with the source; returns the number of files that were copied or deleted."""
    files = list(_files(source))
    sizes = {path: path.lstat().st_size for path in files}
    total, done, changed = sum(sizes.values()), 0, 0
    done_before = _journal(target)
    for path in files:
        control.check()
        inside = target / path.relative_to(source)
        if not _is_twin(path, inside):
            _append(target, inside, source)
            _copy(path, inside, source, target, control, done, total)
            changed += 1
        done += sizes[path]
        control.report("copying", done, total)
    for name in done_before - {path.relative_to(source).as_posix() for path in files}:
        if (target / name).exists():  # the source was deleted or renamed meanwhile
            (target / name).unlink()
            changed += 1
    return changed


def _copy(path: Path, inside: Path, source: Path, target: Path, control: JobContext, done: int, total: int) -> None:
    if not is_inside(target, inside):
        raise CannotWrite(str(inside), "a link in this folder leads out of it")
    inside.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _unfinished(inside)
    unfinished.unlink(missing_ok=True)
    if path.is_symlink():
        leads_to = path.readlink()
        within = path.resolve().is_relative_to(source.resolve())
        unfinished.symlink_to(leads_to if within and not leads_to.is_absolute() else path.resolve())
        unfinished.replace(inside)
        return
    with contextlib.suppress(OSError):  # another drive, or a file system without links
        os.link(path, unfinished)
        unfinished.replace(inside)
        unfinished.unlink(missing_ok=True)  # replacing a link by itself changes nothing
        return
    copy_file(path, unfinished, control, done, total)
    unfinished.replace(inside)


def _leave(catalogue: Catalogue, source: Path, target: Path, control: JobContext, switch: Switch) -> Moved:
    """Delete the old files that have a copy in the new folder, when no model reads them any more."""
    control.report("deleting", 0, 0)
    catalogue.relocated(source, target)
    Trash(catalogue).relocated(source, target)
    while switch.unload(source):
        control.report("waiting", 0, 0, note=because("models_busy"))
        if control.stopping and not control.cancelling:  # there is nothing to cancel any more
            raise Paused
        time.sleep(_WAIT_S)
    remaining = []
    for path in _files(source):
        inside = target / path.relative_to(source)
        try:
            if _is_twin(path, inside) or (_is_ticket(path) and inside.exists()):  # tickets name the new folder
                path.unlink()
            else:
                remaining.append(str(path))
        except OSError as error:
            _log.warning("not deleted path=%s error=%s", path, error)
            remaining.append(str(path))
    _remove_empty_folders(source)
    catalogue.relocated(source, target)  # once more: a scan may have listed old files meanwhile
    (target / _JOURNAL).unlink(missing_ok=True)
    return Moved(path=str(target), size_bytes=_size(target), left=tuple(remaining))


def _discard(target: Path) -> None:
    """Delete the files that the job copied, and the folder if nothing else is in it."""
    for name in _journal(target):
        for path in (target / name, _unfinished(target / name)):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (target / _JOURNAL).unlink(missing_ok=True)
    _remove_empty_folders(target)


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            if name != _JOURNAL:
                yield Path(parent, name)


def _size(folder: Path) -> int:
    total = 0
    for path in _files(folder):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def _is_twin(path: Path, inside: Path) -> bool:
    """Whether the copy is complete: the same file, or one of the same size and time."""
    try:
        one, other = path.lstat(), inside.lstat()
    except OSError:
        return False
    if path.is_symlink():
        return inside.is_symlink() and path.resolve() in {inside.resolve(), path.resolve()}
    same_time = abs(one.st_mtime_ns - other.st_mtime_ns) <= _SAME_TIME_NS
    return os.path.samestat(one, other) or (one.st_size == other.st_size and same_time)


def _is_ticket(path: Path) -> bool:
    return path.name == TICKET and path.parent.parent.name == ".trash"


def _unfinished(inside: Path) -> Path:
    return inside.with_name(f".{inside.name}.moving"[-250:])


def _can_link(source: Path, target: Path) -> bool:
    """Whether both folders are on one drive whose file system has links, so that nothing needs to be copied."""
    probe = target / ".link.moving"
    first = next(_files(source), None)
    try:
        if first is not None:
            os.link(first, probe)
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


def _remove_empty_folders(folder: Path) -> None:
    for parent, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # not empty
            Path(parent).rmdir()


# The journal: the folder that the files come from, then the name of each file that is copied.


def _append(target: Path, inside: Path | None, source: Path) -> None:
    path = target / _JOURNAL
    with path.open("a", encoding="utf-8") as file:
        if path.stat().st_size == 0:
            file.write(f"{msgspec.json.encode(str(source)).decode()}\n")
        if inside is not None:
            file.write(f"{msgspec.json.encode(inside.relative_to(target).as_posix()).decode()}\n")


def _lines(target: Path) -> list[str]:
    journal = target / _JOURNAL
    try:
        # A link would be written through, and no journal is that long.
        if journal.is_symlink() or not journal.is_file() or journal.stat().st_size > _MAX_JOURNAL_BYTES:
            return []
        lines = journal.read_bytes().splitlines()
    except OSError:
        return []
    paths = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line, cut by a kill
            paths.append(msgspec.json.decode(line, type=learned(str)))
    return paths


def _journal_source(target: Path) -> str:
    return next(iter(_lines(target)), "")


def _journal(target: Path) -> set[str]:
    """Names of the files that were copied. The folder may be untrusted: only files inside it count."""
    return {name for name in _lines(target)[1:] if is_inside(target, target / name)}

"""Writes an output safely: temporary name, disk space check, verification, and only then the final name."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from devices.child_command import child_command
from devices.errors import TesseraError
from quantize.errors import BadFile, DiskFull, InvalidOption, NotWritable
from quantize.files.gguf_file import read_gguf

_PARTIAL = re.compile(r"\..+\.(?P<pid>\d+)\.(?P<kind>[a-z]+)\.partial")
# Free space to leave on the disk after the job: a full system disk breaks other programs.
_DISK_RESERVE_BYTES = 64 * 1024 * 1024
# Kinds of temporary files that hold the source's weights.
_COPIES_OF_SOURCE = frozenset({"source", "smooth", "reference"})


def _renamed(value: object, path: Path, replacement: Path) -> object:
    return value.replace(str(path), str(replacement)) if isinstance(value, str) else value


def _has_free(folder: Path, needed_bytes: int) -> bool:
    return shutil.disk_usage(folder).free >= needed_bytes + min(_DISK_RESERVE_BYTES, needed_bytes)


def require_disk(folder: Path, needed_bytes: int) -> None:
    """Check the free space. Raises: DiskFull: the folder's disk has less than `needed_bytes` plus a reserve."""
    if not _has_free(folder, needed_bytes):
        raise DiskFull(str(folder), needed_bytes, shutil.disk_usage(folder).free)


class Output:
    """The output files of a job. Leaving the block removes every unfinished file, even after an error.

    A second process watches this one and removes the files if it is killed. If both are killed (a power failure),
    the next job in the same folder removes the files. With `writes=False` the folder is checked and not changed; it
    may be missing.
    """

    def __init__(self, path: Path, *, overwrite: bool = False, writes: bool = True) -> None:
        self.path = path.absolute()
        self._overwrite, self._writes = overwrite, writes
        self._partials: list[Path] = []
        self._guard: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Check the folder. Raises: InvalidOption: the file exists.

        NotWritable: the folder is missing or read-only.
        """
        if not self._writes:
            _check_folder(self.path.parent)
            return self
        if self.path.exists() and not self._overwrite:
            raise InvalidOption("OUT", f"{self.path} exists already; choose another name or add --overwrite")
        folder = self.path.parent
        if not folder.is_dir():
            raise NotWritable(str(folder), "there is no such folder")
        sweep(folder)
        probe = self.partial("probe")
        try:
            probe.touch(exist_ok=False)
            probe.unlink()
        except OSError as error:
            raise NotWritable(str(folder), error.strerror or str(error)) from error
        self._guard = _new_guard()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in self._partials:
            path.unlink(missing_ok=True)
        if self._guard is not None:
            assert self._guard.stdin is not None
            try:
                self._guard.stdin.write("done\n")
                self._guard.stdin.close()
            except OSError:
                pass  # it has already ended; nothing is left to guard
            self._guard.wait()

    def partial(self, kind: str) -> Path:
        """The temporary path of one of the job's files; it is always removed at the end."""
        path = self.path.with_name(f".{self.path.name}.{os.getpid()}.{kind}.partial")
        if path not in self._partials:
            self._partials.append(path)
            if self._guard is not None and not _send_paths(self._guard, [path]):
                # The guard was ended: start another one and send it all files.
                self._guard.wait()
                self._guard = _new_guard()
                _send_paths(self._guard, self._partials)
        return path

    def name_source(self, error: TesseraError, source: Path) -> None:
        """Let an error name `source` or the output in place of a temporary file, which nobody finds any more."""
        for path in self._partials:
            replacement = source if path.name.split(".")[-2] in _COPIES_OF_SOURCE else self.path
            error.args = tuple(_renamed(value, path, replacement) for value in error.args)
            vars(error).update({name: _renamed(value, path, replacement) for name, value in vars(error).items()})

    def has_free(self, needed_bytes: int) -> bool:
        """Whether the folder's disk has `needed_bytes` plus a reserve."""
        return _has_free(self.path.parent, needed_bytes)

    def require_disk(self, needed_bytes: int) -> None:
        """Check the free space. Raises: DiskFull."""
        require_disk(self.path.parent, needed_bytes)

    def publish(self, partial: Path, types: dict[str, str]) -> None:
        """Check a finished file and give it its final name.

        Raises: BadFile: it differs from the plan. InvalidOption: another job created the same file meanwhile.
        """
        check_written(partial, types)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        if self._overwrite:
            partial.replace(self.path)
            return
        try:
            os.link(partial, self.path)
        except FileExistsError as error:
            raise InvalidOption("OUT", f"{self.path} was created by another job in the meantime") from error
        except OSError:
            # The file system has no hard links, so the check and the rename are two steps.
            if self.path.exists():
                raise InvalidOption("OUT", f"{self.path} was created by another job in the meantime") from None
            partial.rename(self.path)


def _check_folder(folder: Path) -> None:
    """Check write access. Raises: NotWritable: the folder, or its nearest existing parent, is not writable."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        raise NotWritable(str(there), "it is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise NotWritable(str(there), "it is read-only")


def check_written(path: Path, types: dict[str, str]) -> None:
    """Check a written file. Raises: BadFile: tensors differ from `types`, or bytes are missing or left over."""
    file = read_gguf(path)
    types_by_name = {t.name: t.ggml_type.name for t in file.tensors}
    if types_by_name != types:
        wrong = next(n for n in {**types, **types_by_name} if types_by_name.get(n) != types.get(n))
        raise BadFile(str(path), f"{wrong} is {types_by_name.get(wrong)}, planned {types.get(wrong)}")
    if file.file_bytes - file.end not in range(file.alignment):
        raise BadFile(str(path), f"{file.file_bytes - file.end} bytes follow the last tensor")


def write_atomic(path: Path, raw: bytes, kind: str) -> None:
    """Write a small file completely or not at all, with a temporary name that `sweep` knows. Raises: OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{kind}.partial")
    try:
        partial.write_bytes(raw)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove unfinished files of processes that have ended."""
    for path in folder.glob(".*.partial"):
        match = _PARTIAL.fullmatch(path.name)
        if match and not psutil.pid_exists(int(match["pid"])):
            path.unlink(missing_ok=True)


def _new_guard() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        child_command("quantize.files.cleanup_child"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def _send_paths(guard: "subprocess.Popen[str]", paths: Sequence[Path]) -> bool:
    """Send paths to the guard; returns False if it has ended."""
    assert guard.stdin is not None
    try:
        guard.stdin.write("".join(f"{path}\n" for path in paths))
        guard.stdin.flush()
    except OSError:
        with contextlib.suppress(OSError):
            guard.stdin.close()  # drop the unsent input
        return False
    return True

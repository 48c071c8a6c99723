"""Stores the parts of a measurement by content hash; each is written completely or not at all."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt
import psutil

from devices.msgspec_lock import learned
from quantize.errors import NO_SPACE, CannotRead, DiskFull, SourceChanged
from quantize.files.gguf_split import model_files
from quantize.measurements import MeasureRequest

T = TypeVar("T")

_HASH_CHUNK = 1 << 22
_FULL_BYTES = 1 << 20
_VERSION = 8  # increase when the meaning of a cached part changes


class SharedInputGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that multiply the same input and therefore share one Hessian (one per expert).

    `name` is the first of them. `tied` marks an embedding table that is also the output head. `seen` is False for a
    table that is only looked up and has no input to measure. `input_node` is the name of the input's node in the
    graph, if it is known.
    """

    name: str
    members: tuple[str, ...]
    width: int
    experts: int = 1
    tied: bool = False
    seen: bool = True
    input_node: str = ""

    @property
    def moment_bytes(self) -> int:
        return 4 * self.width * self.width * self.experts if self.seen else 0


class WorkFolder:
    """The cache of one source and one calibration text."""

    def __init__(
        self, path: Path, source_sha256: str, calibration_sha256: str, read: tuple[tuple[Path, str], ...] = ()
    ) -> None:
        self.path = path
        self._read = read
        self.source_sha256 = source_sha256
        self.calibration_sha256 = calibration_sha256

    @classmethod
    def open(cls, request: MeasureRequest) -> "WorkFolder":
        """The folder for a request; it is created if missing.

        Raises: CannotRead. SourceChanged: source or text have changed. OSError: the folder cannot be created.
        """
        read = tuple((p, identity_of(p)) for p in (*model_files(request.source), request.calibration))
        source, text = model_sha256(request.source, request.cache_dir), file_sha256(request.calibration)
        for path, current, before in (
            (request.source, source, request.source_sha256),
            (request.calibration, text, request.calibration_sha256),
        ):
            if before and current != before:
                raise SourceChanged(str(path))
        facts = f"{_VERSION} {source} {text} {request.max_tokens} {request.arithmetic}".rstrip()
        key = sha256(facts.encode()).hexdigest()[:24]
        path = request.cache_dir / key
        for part in ("moments", "errors", "packed"):
            (path / part).mkdir(parents=True, exist_ok=True)
        os.utime(path)  # the cache is pruned by time of use
        return cls(path, source, text, read)

    @contextmanager
    def keeping(self, path: Path) -> Iterator[Path]:
        """`writing_whole` for a part; it is discarded if its source or text has changed meanwhile.

        Raises: SourceChanged: source or text. DiskFull.
        """
        with writing_whole(path) as partial:
            yield partial
            for read, identity in self._read:
                if identity_of(read) != identity:
                    raise SourceChanged(str(read))

    def keep_json(self, path: Path, value: Any) -> None:
        """Write a part as JSON. Raises: SourceChanged, DiskFull: same as `keeping`."""
        with self.keeping(path) as partial:
            partial.write_bytes(msgspec.json.encode(value))

    def keep_array(self, path: Path, array: npt.NDArray[Any]) -> None:
        """Write a part as .npy. Raises: SourceChanged, DiskFull: same as `keeping`."""
        with self.keeping(path) as partial, partial.open("wb") as file:
            np.save(file, array)

    def sweep(self) -> None:
        """Remove the unfinished parts of processes that were killed."""
        for path in list(self.path.rglob("*.partial")):
            pid = path.name.split(".")[-2]
            if pid.isdecimal() and int(pid) != os.getpid() and not psutil.pid_exists(int(pid)):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    @contextmanager
    def swept(self) -> Iterator[None]:
        """Run `sweep` before and after the block, because a crashed child process leaves unfinished parts."""
        self.sweep()
        try:
            yield
        finally:
            self.sweep()

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary folder of this process on the cache's disk, for the duration of the block."""
        path = self.path / f"scratch-{token_hex(4)}.{os.getpid()}.partial"
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def part(self, kind: str, name: str, suffix: str) -> Path:
        """The file of one part; tensor names become safe file names."""
        return self.path / kind / f"{quote(name, safe='.')}{suffix}"

    @property
    def imatrix(self) -> Path:
        """The importance matrix, in llama.cpp's format."""
        return self.path / "imatrix.gguf"

    def groups(self) -> tuple[SharedInputGroup, ...] | None:
        """The groups found by the survey, in the model's order; None before the survey."""
        raw = read_json(self.path / "groups.json")
        return None if raw is None else msgspec.convert(raw, learned(tuple[SharedInputGroup, ...]))

    def moments(self, group: SharedInputGroup) -> npt.NDArray[np.float32] | None:
        """(experts, width, width) mean outer products of the inputs, memory-mapped; None if missing."""
        path = self.part("moments", group.name, ".npy")
        return np.load(path, mmap_mode="r") if path.exists() else None

    def diagonals(self, group: SharedInputGroup) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]] | None:
        """(experts, width) mean squares of the inputs and (experts,) their token counts; never removed."""
        path = self.part("moments", group.name, ".diagonal.npz")
        if not path.exists():
            return None
        with np.load(path) as stored:
            return stored["mean"], stored["tokens"]

    def peaks(self, group: SharedInputGroup) -> dict[int, npt.NDArray[np.float32]]:
        """By block length: (experts, blocks) mean squares of the largest value in each block of the inputs."""
        path = self.part("moments", group.name, ".diagonal.npz")
        if not path.exists():
            return {}
        with np.load(path) as stored:
            return {int(k.removeprefix("peaks")): stored[k] for k in stored.files if k.startswith("peaks")}

    def tokens(self, group: SharedInputGroup, expert: int) -> int | None:
        """Number of tokens behind one expert's Hessian; None if missing."""
        diagonals = self.diagonals(group)
        return None if diagonals is None else int(diagonals[1][expert])

    def drop_moments(self, group: SharedInputGroup) -> None:
        """Delete the group's Hessians to free disk space; they can be measured again."""
        self.part("moments", group.name, ".npy").unlink(missing_ok=True)


def hash_is_cached(path: Path, cache_dir: Path) -> bool:
    """Whether `model_sha256` would use the cache. A file without a cached hash was never measured."""
    try:
        return all(_remembered(p, cache_dir).exists() for p in model_files(path))
    except CannotRead:
        return False


def identity_of(path: Path) -> str:
    """A string that changes when the file's bytes change. Raises: CannotRead."""
    try:
        stat = path.stat()
    except OSError as error:
        raise CannotRead(str(path), error.strerror or str(error)) from error
    return f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"


def _nothing(_num_bytes: int) -> None:
    pass


def _remembered(path: Path, cache_dir: Path) -> Path:
    return cache_dir / "hashes" / sha256(identity_of(path).encode()).hexdigest()


def _result_file(what: str, source: Path, cache_dir: Path) -> Path:
    identity = " ".join(map(identity_of, model_files(source)))
    return cache_dir / "hashes" / f"{what}-{sha256(identity.encode()).hexdigest()}"


def cached_result(what: str, source: Path, cache_dir: Path, kind: type[T]) -> T | None:
    """An earlier result about a model, valid for its files' paths, sizes and times; None without one.

    Raises: CannotRead.
    """
    content = read_json(_result_file(what, source, cache_dir))
    return None if content is None else msgspec.convert(content, learned(kind))


def cache_result(what: str, source: Path, cache_dir: Path, result: object) -> None:
    """Store a result for `cached_result`; if that fails, it is computed again next time."""
    with suppress(OSError):
        path = _result_file(what, source, cache_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result)


def model_sha256(path: Path, cache_dir: Path | None = None, on_chunk: Callable[[int], None] = _nothing) -> str:
    """SHA-256 of a model's file; for several files, the SHA-256 of their concatenated hashes.

    `on_chunk` gets the size of each chunk that was read, and may raise. Raises: CannotRead.
    """
    digests = [file_sha256(p, cache_dir, on_chunk) for p in model_files(path)]
    return digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()


def file_sha256(path: Path, cache_dir: Path | None = None, on_chunk: Callable[[int], None] = _nothing) -> str:
    """SHA-256 of a file; with `cache_dir`, it is cached by path, size and modification time.

    `on_chunk` as in `model_sha256`. Raises: CannotRead.
    """
    try:
        cache_file = None
        if cache_dir is not None:
            cache_file = _remembered(path, cache_dir)
            cached = read_json(cache_file)
            if isinstance(cached, str):
                return cached
        digest = sha256()
        with path.open("rb") as file:
            while chunk := file.read(_HASH_CHUNK):
                digest.update(chunk)
                on_chunk(len(chunk))
    except OSError as error:
        raise CannotRead(str(path), error.strerror or str(error)) from error
    if cache_file is not None:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache_file, digest.hexdigest())
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """The value in a file; None if it is missing or incomplete."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON so that a reader sees all of it or nothing. Raises: DiskFull."""
    write_whole(path, msgspec.json.encode(value))


def write_whole(path: Path, data: bytes) -> None:
    """Write bytes so that a reader sees all of them or nothing. Raises: DiskFull."""
    with writing_whole(path) as partial:
        partial.write_bytes(data)


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array as .npy, completely or not at all. Raises: DiskFull."""
    with writing_whole(path) as partial, partial.open("wb") as file:
        np.save(file, array)


@contextmanager
def writing_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; rename it on success, remove it on failure. Raises: DiskFull."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        free = shutil.disk_usage(path.parent).free
        # numpy reports a short write without an error number.
        if error.errno in NO_SPACE or (error.errno is None and free < _FULL_BYTES):
            have = partial.stat().st_size if partial.exists() else 0
            raise DiskFull(str(path), have + 1, free) from error
        raise
    finally:
        partial.unlink(missing_ok=True)

"""Where a measurement keeps its parts: by content hash, each written whole or not at all."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
import numpy.typing as npt
import psutil

from devices.msgspec_lock import learned
from quantize.errors import DiskFull, SourceChanged, Unreadable
from quantize.files.gguf_split import model_files
from quantize.measurements import MeasureRequest

_HASH_CHUNK = 1 << 22
_FULL_BYTES = 1 << 20
_VERSION = 8  # raised when the meaning of a cached part changes


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Weights that multiply the same input: their second moments are one matrix (one for each expert).

    `name` is the first of them; `tied` marks an embedding table that is the output head too; `seen` is False for a
    table that is only looked up, which has no input to measure. `input_node` names the node of the graph that
    is the input, where that is known by name.
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
        """Bytes of its second moments."""
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
        """The folder for a request, made if it is not there.

        Raises: Unreadable. SourceChanged: source or text are no longer what they were. OSError: it cannot be made.
        """
        read = tuple((p, identity_of(p)) for p in (*model_files(request.source), request.calibration))
        source, text = model_sha256(request.source, request.cache_dir), file_sha256(request.calibration)
        for path, found, before in (
            (request.source, source, request.source_sha256),
            (request.calibration, text, request.calibration_sha256),
        ):
            if before and found != before:
                raise SourceChanged(str(path))
        facts = f"{_VERSION} {source} {text} {request.max_tokens} {request.arithmetic}".rstrip()
        key = sha256(facts.encode()).hexdigest()[:24]
        path = request.cache_dir / key
        for part in ("moments", "errors", "packed"):
            (path / part).mkdir(parents=True, exist_ok=True)
        os.utime(path)  # which measurements are kept goes by when they were used
        return cls(path, source, text, read)

    @contextmanager
    def keeping(self, path: Path) -> Iterator[Path]:
        """`writing_whole` for a part, which is not kept where what it was made of has changed since.

        Raises: SourceChanged: source or text. DiskFull.
        """
        with writing_whole(path) as partial:
            yield partial
            for read, identity in self._read:
                if identity_of(read) != identity:
                    raise SourceChanged(str(read))

    def keep_json(self, path: Path, value: Any) -> None:
        """Write a part. Raises: SourceChanged, DiskFull: as `keeping`."""
        with self.keeping(path) as partial:
            partial.write_bytes(msgspec.json.encode(value))

    def keep_array(self, path: Path, array: npt.NDArray[Any]) -> None:
        """Write a part as .npy. Raises: SourceChanged, DiskFull: as `keeping`."""
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
        """Without unfinished parts of processes that ended, before and after: a child that dies leaves its own."""
        self.sweep()
        try:
            yield
        finally:
            self.sweep()

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder of this process for the time of the `with`, on the disk of the cache."""
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

    def groups(self) -> tuple[Group, ...] | None:
        """What the survey found, in the order of the model; None before it ran."""
        raw = read_json(self.path / "groups.json")
        return None if raw is None else msgspec.convert(raw, learned(tuple[Group, ...]))

    def moments(self, group: Group) -> npt.NDArray[np.float32] | None:
        """(experts, width, width) mean outer products of the inputs, mapped; None if they are not there."""
        path = self.part("moments", group.name, ".npy")
        return np.load(path, mmap_mode="r") if path.exists() else None

    def diagonals(self, group: Group) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]] | None:
        """(experts, width) mean squares of the inputs and (experts,) tokens they rest on; kept for good."""
        path = self.part("moments", group.name, ".diagonal.npz")
        if not path.exists():
            return None
        with np.load(path) as stored:
            return stored["mean"], stored["tokens"]

    def peaks(self, group: Group) -> dict[int, npt.NDArray[np.float32]]:
        """By length of block: (experts, blocks) mean squares of the largest value in each block of the inputs."""
        path = self.part("moments", group.name, ".diagonal.npz")
        if not path.exists():
            return {}
        with np.load(path) as stored:
            return {int(k.removeprefix("peaks")): stored[k] for k in stored.files if k.startswith("peaks")}

    def tokens(self, group: Group, expert: int) -> int | None:
        """Tokens that the second moments of one expert rest on; None if they are not there."""
        found = self.diagonals(group)
        return None if found is None else int(found[1][expert])

    def drop_moments(self, group: Group) -> None:
        """Free the disk they take; they can be measured again."""
        self.part("moments", group.name, ".npy").unlink(missing_ok=True)


def hash_is_cached(path: Path, cache_dir: Path) -> bool:
    """Whether `model_sha256` would answer from the cache: a file never hashed was never measured either."""
    try:
        return all(_remembered(p, cache_dir).exists() for p in model_files(path))
    except Unreadable:
        return False


def identity_of(path: Path) -> str:
    """What of a file changes when its bytes do. Raises: Unreadable."""
    try:
        stat = path.stat()
    except OSError as error:
        raise Unreadable(str(path), error.strerror or str(error)) from error
    return f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"


def _remembered(path: Path, cache_dir: Path) -> Path:
    return cache_dir / "hashes" / sha256(identity_of(path).encode()).hexdigest()


def model_sha256(path: Path, cache_dir: Path | None = None) -> str:
    """SHA-256 of a model's file; of the hashes of all of them, one after the other, where there are several.

    Raises: Unreadable.
    """
    found = [file_sha256(p, cache_dir) for p in model_files(path)]
    return found[0] if len(found) == 1 else sha256("".join(found).encode()).hexdigest()


def file_sha256(path: Path, cache_dir: Path | None = None) -> str:
    """SHA-256 of a file; with `cache_dir`, remembered there by path, size and time of change.

    Raises: Unreadable.
    """
    try:
        cache_file = None
        if cache_dir is not None:
            cache_file = _remembered(path, cache_dir)
            found = read_json(cache_file)
            if isinstance(found, str):
                return found
        digest = sha256()
        with path.open("rb") as file:
            while chunk := file.read(_HASH_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise Unreadable(str(path), error.strerror or str(error)) from error
    if cache_file is not None:
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache_file, digest.hexdigest())
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """The value in a file; None if it is not there or not whole."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Write a value so that a reader finds all of it or nothing. Raises: DiskFull."""
    write_whole(path, msgspec.json.encode(value))


def write_whole(path: Path, data: bytes) -> None:
    """Write bytes so that a reader finds all of them or nothing. Raises: DiskFull."""
    with writing_whole(path) as partial:
        partial.write_bytes(data)


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """Write an array as .npy, whole or not at all. Raises: DiskFull."""
    with writing_whole(path) as partial, partial.open("wb") as file:
        np.save(file, array)


@contextmanager
def writing_whole(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that becomes it if all goes well, and is gone if not. Raises: DiskFull."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        free = shutil.disk_usage(path.parent).free
        # numpy tells of a short write without a number.
        if error.errno == errno.ENOSPC or (error.errno is None and free < _FULL_BYTES):
            have = partial.stat().st_size if partial.exists() else 0
            raise DiskFull(str(path), have + 1, free) from error
        raise
    finally:
        partial.unlink(missing_ok=True)

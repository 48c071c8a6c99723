"""Downloads a model from a hub: checks disk space, downloads, verifies, then moves the files into the library."""

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import httpx2
import msgspec

from devices.atomic_file import write_atomically
from engine.core.errors import BadModelFile, Cancelled
from engine.core.paths import Paths
from engine.jobs.jobs import JobContext
from engine.library import origins
from engine.library.catalogue import Catalogue
from engine.library.errors import (
    BadUpdate,
    CannotWrite,
    FileChanged,
    HashMismatch,
    HubUnreachable,
    NotEnoughDisk,
    RateLimited,
    UnsafeName,
)
from engine.library.hashing import git_sha1_of, sha256_of
from engine.library.hub.client import HubClient
from engine.library.hub.partial_file import PartialFile
from engine.library.hub.repository import is_safe_name
from engine.library.hub.types import RepoFile, Repository
from engine.library.types import ModelEntry, Origin
from engine.message_catalog.reasons import Reason, because

# Download of one file into a part file: parallel ranges, retries on bad connections, responsive to pause and
# cancel.

_log = logging.getLogger(__name__)
_LINKED_ETAG = "x-linked-etag"
_CHUNK_BYTES = 256 * 1024
_JOURNAL_EVERY_S = 2.0
_REPORT_EVERY_S = 0.2
_MAX_BACKOFF_S = 30.0
_MAX_RETRY_AFTER_S = 600.0


class RetryPolicy(msgspec.Struct, frozen=True):
    """Retry policy: `streams` parallel ranges of `segment_bytes`; give up after `give_up_s` without a new byte."""

    streams: int = 4
    segment_bytes: int = 16 * 1024 * 1024
    give_up_s: float = 300.0
    first_backoff_s: float = 1.0


class _RangesIgnored(Exception):
    """The server sent the whole file in response to a range request."""


class Transfer:
    """Download the missing bytes of one part.

    Raises: Paused, Cancelled (the part keeps its bytes); FileChanged; HubUnreachable; the errors of
    HubClient.stream; OSError if the disk refuses.
    """

    def __init__(
        self,
        client: HubClient,
        url: str,
        repo: str,
        *,
        part: PartialFile,
        control: JobContext,
        patience: RetryPolicy,
    ) -> None:
        self._client = client
        self._url = url
        self._repo = repo
        self._part = part
        self._control = control
        self._patience = patience
        self._halt = threading.Event()
        self._moved_at = time.monotonic()
        self._queue: list[int] = []
        self._queue_lock = threading.Lock()

    def run(self, on_bytes: Callable[[int], None]) -> None:
        """Download; `on_bytes` receives the byte count of the part several times per second."""
        try:
            self._run_ranges(on_bytes)
        except _RangesIgnored:
            _log.info("no ranges at %s: one stream from the start", self._repo)
            self._part.restart()
            self._run_whole(on_bytes)
        finally:
            self._part.save()

    def _run_ranges(self, on_bytes: Callable[[int], None]) -> None:
        self._queue = self._part.missing()
        workers = min(self._patience.streams, len(self._queue))
        if not workers:
            return
        pool = ThreadPoolExecutor(workers, thread_name_prefix="download")
        futures = [pool.submit(self._work) for _ in range(workers)]
        try:
            self._watch(futures, on_bytes)
        finally:
            # A worker on a silent connection stops only when its read times out. Do not wait for it: it checks
            # `_halt` before it writes, and a closed part ignores writes.
            self._halt.set()
            pool.shutdown(wait=False, cancel_futures=True)
        # `wait` would never return for a future that was cancelled before a thread took it.
        workers_left = [future for future in futures if not future.cancelled()]
        wait(workers_left)  # `run` may start again from zero: another worker must not write into the new bytes
        for future in workers_left:
            future.result()

    def _watch(self, futures: list[Future[None]], on_bytes: Callable[[int], None]) -> None:
        """Report progress, save the journal and check for cancellation until the workers finish or one fails."""
        saved_at = time.monotonic()
        pending = set(futures)
        while pending:
            finished, pending = wait(pending, timeout=_REPORT_EVERY_S, return_when=FIRST_EXCEPTION)
            on_bytes(self._part.done_bytes)
            self._control.check()
            if any(f.exception() for f in finished):
                return
            if time.monotonic() - saved_at > _JOURNAL_EVERY_S:
                self._part.save()
                saved_at = time.monotonic()

    def _work(self) -> None:
        while not self._halt.is_set():
            with self._queue_lock:
                if not self._queue:
                    return
                segment = self._queue.pop(0)
            self._fetch_segment(segment)

    def _fetch_segment(self, segment: int) -> None:
        backoff = self._patience.first_backoff_s
        while not self._halt.is_set():
            start, end = self._part.span(segment)
            if start >= end:
                return
            try:
                self._fetch_span(segment, start, end)
            except (httpx2.TransportError, HubUnreachable, RateLimited) as error:
                backoff = self._retry_or_raise(error, backoff)

    def _retry_or_raise(self, error: Exception, backoff: float) -> float:
        """Sleep before the next attempt, or raise if the error is permanent or no byte arrived for too long."""
        if isinstance(error, HubUnreachable) and error.status is not None and error.status < 500:  # noqa: PLR2004 5xx pass
            raise error
        pause = min(error.retry_after_s, _MAX_RETRY_AFTER_S) if isinstance(error, RateLimited) else backoff
        if time.monotonic() - self._moved_at + pause > self._patience.give_up_s:
            if isinstance(error, httpx2.TransportError):
                raise HubUnreachable(self._client.endpoint, type(error).__name__) from error
            raise error
        _log.info("waiting %.1f s after %s", pause, type(error).__name__)
        self._halt.wait(pause)
        return min(backoff * 2, _MAX_BACKOFF_S)

    def _fetch_span(self, segment: int, start: int, end: int) -> None:
        with self._client.stream(self._url, self._repo, start, end) as response:
            self._check_identity(response)
            if response.status_code != httpx2.codes.PARTIAL_CONTENT:
                if (start, end) != (0, self._part.journal.size_bytes):
                    raise _RangesIgnored
            else:
                self._check_range(response, start, end)
            missing = end - start
            for chunk in response.iter_raw(_CHUNK_BYTES):
                if self._halt.is_set():
                    return
                self._part.write(segment, chunk[:missing])
                self._moved_at = time.monotonic()
                missing -= min(len(chunk), missing)
                if not missing:
                    return
        if missing:
            raise httpx2.RemoteProtocolError("the answer ended early")

    def _run_whole(self, on_bytes: Callable[[int], None]) -> None:
        """Download in one stream from the first byte; after a break, start again at the first byte."""
        backoff = self._patience.first_backoff_s
        self._halt.clear()
        while True:
            try:
                self._stream_whole(on_bytes)
            except (httpx2.TransportError, HubUnreachable, RateLimited) as error:
                self._part.restart()
                backoff = self._retry_or_raise(error, backoff)
                self._control.check()
            else:
                return

    def _stream_whole(self, on_bytes: Callable[[int], None]) -> None:
        part = self._part
        with self._client.stream(self._url, self._repo, 0, None) as response:
            self._check_identity(response)
            for chunk in response.iter_raw(_CHUNK_BYTES):
                self._control.check()
                view = memoryview(chunk)[: part.journal.size_bytes - part.done_bytes]
                while view:
                    segment = part.missing()[0]
                    start, end = part.span(segment)
                    part.write(segment, bytes(view[: end - start]))
                    view = view[end - start :]
                self._moved_at = time.monotonic()
                on_bytes(part.done_bytes)
                if part.complete:
                    return  # the server may send more, without end
        raise httpx2.RemoteProtocolError("the answer ended early")

    def _check_identity(self, response: httpx2.Response) -> None:
        """Compare the content hash that the hub sends with every response. Raises: FileChanged."""
        for answer in (*response.history, response):
            etag = answer.headers.get(_LINKED_ETAG)
            if etag is not None and etag.removeprefix("W/").strip('"') != self._part.journal.identity:
                raise FileChanged(self._repo)

    def _check_range(self, response: httpx2.Response, start: int, end: int) -> None:
        expected = f"bytes {start}-{end - 1}/{self._part.journal.size_bytes}"
        if response.headers.get("Content-Range") != expected:
            raise FileChanged(self._repo)


# Disk space to leave free: a full disk breaks the catalogue and other programs.
_RESERVE_BYTES = 256 * 1024 * 1024
_FOLLOW_S = 0.3
_FILES_AT_ONCE = 2


class Request(msgspec.Struct, frozen=True):
    """Files of one commit; `files` are verified together and become visible together."""

    repository: Repository
    files: tuple[RepoFile, ...]

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass
class DownloadPaths:
    """Paths of a request's files: their final paths, and the part files before verification."""

    paths: Paths
    repository: Repository
    folder: Path = field(init=False)
    parts: Path = field(init=False)

    def __post_init__(self) -> None:
        for part in self.repository.repo.split("/"):
            if not is_safe_name(part):
                raise UnsafeName(self.repository.repo)
        self.folder = self.paths.models / "hub" / self.repository.repo
        self.parts = self.paths.models / ".partial" / self.repository.repo.replace("/", "--")

    def final(self, file: RepoFile) -> Path:
        """Final path of the file. Raises: UnsafeName."""
        if not is_safe_name(file.name):
            raise UnsafeName(file.name)
        path = self.folder / file.name
        if not path.resolve().is_relative_to(self.paths.models.resolve()):
            raise UnsafeName(file.name)
        return path

    def part(self, file: RepoFile) -> Path:
        """Path of the file's part; the same for every process that downloads this content."""
        key = hashlib.sha256(f"{file.name}\0{identity(file)}".encode()).hexdigest()[:24]
        return self.parts / f"{key}.part"


class Download:
    """One download. After a pause, a failure or a crash, call `run` again: it continues where it stopped."""

    def __init__(
        self, client: HubClient, catalogue: Catalogue, request: Request, patience: RetryPolicy | None = None
    ) -> None:
        self._client = client
        self._catalogue = catalogue
        self._request = request
        self._paths = DownloadPaths(catalogue.paths, request.repository)
        self._patience = patience or RetryPolicy()
        self._counts: dict[str, int] = {}
        self._counts_lock = threading.Lock()

    def run(self, control: JobContext) -> ModelEntry:
        """Download, verify, move into place and list.

        Raises: Paused (parts stay); Cancelled (parts are removed); NotEnoughDisk, HashMismatch, FileChanged,
        UnsafeName, and the errors of HubClient.
        """
        for file in self._request.files:
            self._paths.final(file)
        try:
            control.check()
            with self._disk_explained():
                self._check_disk()
                with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
                    for future in [pool.submit(self._obtain, file, control) for file in self._request.files]:
                        future.result()
                for file in self._request.files:
                    self._publish(file)
                self._clear_parts()
            return self._list_or_restore()
        except Cancelled:
            self._tidy()
            raise

    def _missing(self) -> list[RepoFile]:
        return [file for file in self._request.files if not self._installed(file)]

    def _installed(self, file: RepoFile) -> bool:
        note = origins.read_note(self._paths.folder)
        path = self._paths.final(file)
        noted = note is not None and note.sha256.get(file.name) == identity(file)
        return noted and path.is_file() and path.stat().st_size == file.size_bytes

    def _check_disk(self) -> None:
        """Check the disk space before the first byte. Raises: NotEnoughDisk."""
        models = self._paths.paths.models
        models.mkdir(parents=True, exist_ok=True)
        needed = 0
        for file in self._missing():
            part = self._paths.part(file)
            # Count only allocated blocks: holes of a sparse part use no disk space yet.
            on_disk = part.stat().st_blocks * 512 if part.exists() and hasattr(os.stat_result, "st_blocks") else 0
            needed += max(0, file.size_bytes - on_disk)
        free = shutil.disk_usage(models).free
        if needed and needed + _RESERVE_BYTES > free:
            raise NotEnoughDisk(str(models), needed + _RESERVE_BYTES, free)

    @contextlib.contextmanager
    def _disk_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            models = self._paths.paths.models
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise CannotWrite(str(models), error.strerror or str(error)) from error
            missing = sum(f.size_bytes for f in self._missing()) - sum(self._counts.values())
            raise NotEnoughDisk(str(models), max(missing, 1), shutil.disk_usage(models).free) from error

    def _obtain(self, file: RepoFile, control: JobContext) -> None:
        """Complete and verify one file part; if another process downloads it, wait and report its progress."""
        if self._installed(file):
            self._count(file, file.size_bytes, control)
            return
        path = self._paths.part(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path.with_suffix(".lock"), timeout=0)
        while True:
            try:
                lock.acquire()
                break
            except filelock.Timeout:
                self._count(file, _noted_bytes(path), control, because("fetched_elsewhere"))
                control.wait(_FOLLOW_S)
        try:
            if not self._installed(file) and not self._adopt(file, control):
                self._fetch_and_verify(file, path, control)
        finally:
            lock.release()

    def _adopt(self, file: RepoFile, control: JobContext) -> bool:
        """Accept a file that is already in place (put there by the user, or by a process killed at the end)."""
        final = self._paths.final(file)
        if not final.is_file() or final.stat().st_size != file.size_bytes or self._paths.part(file).exists():
            return False
        actual = sha256_of(final, control) if file.sha256 else git_sha1_of(final)
        if actual != identity(file):
            return False
        self._note(file)
        return True

    def _fetch_and_verify(self, file: RepoFile, path: Path, control: JobContext) -> None:
        part = PartialFile(path, identity(file), file.size_bytes, self._patience.segment_bytes)
        try:
            if not part.complete:
                self._fetch(file, part, control)
            if not part.journal.verified:
                self._verify(file, part, control)
                part.journal.verified = True
                part.save()
            self._count(file, file.size_bytes, control)
        finally:
            part.close()

    def _fetch(self, file: RepoFile, part: PartialFile, control: JobContext) -> None:
        repository = self._request.repository
        url = self._client.file_url(repository.repo, repository.revision, file.name)
        transfer = Transfer(self._client, url, repository.repo, part=part, control=control, patience=self._patience)
        try:
            transfer.run(lambda count: self._count(file, count, control))
        except FileChanged:
            part.restart()
            raise

    def _verify(self, file: RepoFile, part: PartialFile, control: JobContext) -> None:
        if file.sha256 is not None:
            expected, actual = file.sha256, sha256_of(part.path, control)
        elif file.git_sha1 is not None:
            expected, actual = file.git_sha1, git_sha1_of(part.path)
        else:
            return  # the hub publishes no hash for this file
        if expected != actual:
            part.close()
            raise HashMismatch(file.name, expected, actual, str(self._quarantine(file, part)))

    def _quarantine(self, file: RepoFile, part: PartialFile) -> Path:
        folder = self._paths.paths.models / ".quarantine"
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{Path(file.name).name}-{int(time.time())}.bad"
        part.path.replace(target)
        part.journal_path.unlink(missing_ok=True)
        return target

    def _count(self, file: RepoFile, done: int, control: JobContext, note: str | Reason = "") -> None:
        with self._counts_lock:
            self._counts[file.name] = done
            control.report("downloading", sum(self._counts.values()), self._request.total_bytes, note=note)

    def _publish(self, file: RepoFile) -> None:
        """Rename a verified part to its final path and record it in the folder's note."""
        part = self._paths.part(file)
        with filelock.FileLock(part.with_suffix(".lock")):
            if not part.exists():
                return  # another process has moved it into place
            final = self._paths.final(file)
            final.parent.mkdir(parents=True, exist_ok=True)
            _keep_previous(final)
            part.replace(final)
            part.with_suffix(".json").unlink(missing_ok=True)
            self._note(file)

    def _note(self, file: RepoFile, sha256: str = "") -> None:
        """Record the content of a file in the note: the expected hash, or `sha256`."""
        repository, folder = self._request.repository, self._paths.folder
        with filelock.FileLock(self._paths.parts / "note.lock"):
            old = origins.read_note(folder)
            note = origins.DownloadNote(
                repo=repository.repo,
                revision=repository.revision,
                endpoint=repository.endpoint,
                license=repository.license,
                sha256={**(old.sha256 if old else {}), file.name: sha256 or identity(file)},
            )
            write_atomically(folder / origins.NOTE_NAME, msgspec.json.encode(note))

    def _clear_parts(self) -> None:
        """Remove the folder of parts if no download in it is in progress."""
        if not any(self._paths.parts.glob("*.part")):
            shutil.rmtree(self._paths.parts, ignore_errors=True)

    def _list_or_restore(self) -> ModelEntry:
        """Add the files to the catalogue; if they cannot be read, restore the previous ones. Raises: BadUpdate."""
        finals = [self._paths.final(file) for file in self._request.files]
        replaced = [final for final in finals if _previous(final).exists()]
        try:
            entry = self._list()
        except BadModelFile as error:
            if not replaced:
                raise
            for file, final in zip(self._request.files, finals, strict=True):
                if final in replaced:
                    _previous(final).replace(final)
                    self._note(file, sha256_of(final, JobContext()) if file.sha256 else git_sha1_of(final))
            self._clear_parts()
            raise BadUpdate(self._request.repository.repo, str(error)) from error
        for final in replaced:
            _previous(final).unlink()
        return entry

    def _list(self) -> ModelEntry:
        first = self._paths.final(self._request.files[0])
        is_folder = first.suffix != ".gguf"
        repository = self._request.repository
        origin = Origin(
            kind="hub",
            repo=repository.repo,
            revision=repository.revision,
            expected={Path(f.name).name: identity(f) for f in self._request.files},
        )
        entry = self._catalogue.add(first.parent if is_folder else first, origin)
        sums = {str(self._paths.final(f)): f.sha256 for f in self._request.files}
        files = tuple(msgspec.structs.replace(f, sha256=sums.get(f.path)) for f in entry.files)
        details = msgspec.structs.replace(entry.details, license=entry.details.license or repository.license)
        entry = msgspec.structs.replace(entry, files=files, details=details)
        self._catalogue.put(entry)
        return entry

    def _tidy(self) -> None:
        """Remove the parts of a cancelled request, unless another process is using them."""
        for file in self._request.files:
            _discard(self._paths.part(file))


def discard_parts(paths: Paths, repo: str) -> None:
    """Remove partial downloads of a repository that are not in progress."""
    for part in (paths.models / ".partial" / repo.replace("/", "--")).glob("*.part"):
        _discard(part)


def _discard(part: Path) -> None:
    with contextlib.suppress(filelock.Timeout), filelock.FileLock(part.with_suffix(".lock"), timeout=0):
        part.unlink(missing_ok=True)
        part.with_suffix(".json").unlink(missing_ok=True)


def _previous(final: Path) -> Path:
    """Path of the older version of a file until the newer one is known to work."""
    return final.with_name(f"{final.name}.previous")


def _keep_previous(final: Path) -> None:
    """Hard-link the current file to its `.previous` path, so that the file always exists; else rename it."""
    if not final.exists() or _previous(final).exists():
        return
    try:
        os.link(final, _previous(final))
    except OSError:
        final.replace(_previous(final))


def identity(file: RepoFile) -> str:
    """Key of a file's content: its expected hash, else its size."""
    return file.sha256 or file.git_sha1 or f"size-{file.size_bytes}"


def _noted_bytes(path: Path) -> int:
    """Bytes that another process has downloaded, according to its journal."""
    try:
        journal = msgspec.json.decode(path.with_suffix(".json").read_bytes())
        return sum(int(n) for n in journal["done"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return 0

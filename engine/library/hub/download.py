"""A model from a hub to the catalogue: room checked, fetched, verified, and only then put in its place."""

import contextlib
import errno
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import filelock
import msgspec

from devices.atomic_file import write_atomically
from engine.core.errors import BadModelFile, Cancelled
from engine.core.paths import Paths
from engine.jobs.jobs import Control
from engine.library import origins
from engine.library.catalogue import Catalogue
from engine.library.errors import BadUpdate, CannotWrite, FileChanged, HashMismatch, NotEnoughDisk, UnsafeName
from engine.library.hashing import git_sha1_of, sha256_of
from engine.library.hub.client import HubClient
from engine.library.hub.partial_file import Part
from engine.library.hub.repository import is_safe_name
from engine.library.hub.transfer import Patience, Transfer
from engine.library.hub.types import RepoFile, Repository
from engine.library.types import ModelEntry, Origin
from engine.message_catalog.reasons import Reason, because

# Left free on the disk: a full one breaks the catalogue and every other program.
_RESERVE_BYTES = 256 * 1024 * 1024
_FOLLOW_S = 0.3
_FILES_AT_ONCE = 2


class Request(msgspec.Struct, frozen=True):
    """Which files of which commit; `files` are verified together and appear together."""

    repository: Repository
    files: tuple[RepoFile, ...]

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)


@dataclass
class DownloadPaths:
    """Where a request's files go, and where they are until they are verified."""

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
        """Where the file will be. Raises: UnsafeName."""
        if not is_safe_name(file.name):
            raise UnsafeName(file.name)
        path = self.folder / file.name
        if not path.resolve().is_relative_to(self.paths.models.resolve()):
            raise UnsafeName(file.name)
        return path

    def part(self, file: RepoFile) -> Path:
        """Where its bytes are gathered; the same for every process that wants this content."""
        key = hashlib.sha256(f"{file.name}\0{identity(file)}".encode()).hexdigest()[:24]
        return self.parts / f"{key}.part"


class Download:
    """One request. `run` may be called again after a pause, a failure or a crash: it continues where it stood."""

    def __init__(
        self, client: HubClient, catalogue: Catalogue, request: Request, patience: Patience | None = None
    ) -> None:
        self._client = client
        self._catalogue = catalogue
        self._request = request
        self._paths = DownloadPaths(catalogue.paths, request.repository)
        self._patience = patience or Patience()
        self._counts: dict[str, int] = {}
        self._counts_lock = threading.Lock()

    def run(self, control: Control) -> ModelEntry:
        """Fetch, verify, place and list.

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
        """Refuse before the first byte what cannot end well."""
        models = self._paths.paths.models
        models.mkdir(parents=True, exist_ok=True)
        needed = 0
        for file in self._missing():
            part = self._paths.part(file)
            # Holes of a sparse part take no room yet; what is allocated does.
            held = part.stat().st_blocks * 512 if part.exists() and hasattr(os.stat_result, "st_blocks") else 0
            needed += max(0, file.size_bytes - held)
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

    def _obtain(self, file: RepoFile, control: Control) -> None:
        """Have one file's part whole and verified; if another process fetches it, follow that one."""
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

    def _adopt(self, file: RepoFile, control: Control) -> bool:
        """Accept a file that is already in its place (put there by hand, or by a process killed at the end)."""
        final = self._paths.final(file)
        if not final.is_file() or final.stat().st_size != file.size_bytes or self._paths.part(file).exists():
            return False
        actual = sha256_of(final, control) if file.sha256 else git_sha1_of(final)
        if actual != identity(file):
            return False
        self._note(file)
        return True

    def _fetch_and_verify(self, file: RepoFile, path: Path, control: Control) -> None:
        part = Part(path, identity(file), file.size_bytes, self._patience.segment_bytes)
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

    def _fetch(self, file: RepoFile, part: Part, control: Control) -> None:
        repository = self._request.repository
        url = self._client.file_url(repository.repo, repository.revision, file.name)
        transfer = Transfer(self._client, url, repository.repo, part=part, control=control, patience=self._patience)
        try:
            transfer.run(lambda count: self._count(file, count, control))
        except FileChanged:
            part.restart()
            raise

    def _verify(self, file: RepoFile, part: Part, control: Control) -> None:
        if file.sha256 is not None:
            expected, actual = file.sha256, sha256_of(part.path, control)
        elif file.git_sha1 is not None:
            expected, actual = file.git_sha1, git_sha1_of(part.path)
        else:
            return  # the hub promises nothing about this file
        if expected != actual:
            part.close()
            raise HashMismatch(file.name, expected, actual, str(self._quarantine(file, part)))

    def _quarantine(self, file: RepoFile, part: Part) -> Path:
        folder = self._paths.paths.models / ".quarantine"
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{Path(file.name).name}-{int(time.time())}.bad"
        part.path.replace(target)
        part.journal_path.unlink(missing_ok=True)
        return target

    def _count(self, file: RepoFile, done: int, control: Control, note: str | Reason = "") -> None:
        with self._counts_lock:
            self._counts[file.name] = done
            control.report("downloading", sum(self._counts.values()), self._request.total_bytes, note=note)

    def _publish(self, file: RepoFile) -> None:
        """A verified part to its place by renaming, and a note of it beside."""
        part = self._paths.part(file)
        with filelock.FileLock(part.with_suffix(".lock")):
            if not part.exists():
                return  # another process has placed it
            final = self._paths.final(file)
            final.parent.mkdir(parents=True, exist_ok=True)
            _keep(final)
            part.replace(final)
            part.with_suffix(".json").unlink(missing_ok=True)
            self._note(file)

    def _note(self, file: RepoFile, found: str = "") -> None:
        """Write down what is in its place: the promised content, or what was `found`."""
        repository, folder = self._request.repository, self._paths.folder
        with filelock.FileLock(self._paths.parts / "note.lock"):
            old = origins.read_note(folder)
            note = origins.DownloadNote(
                repo=repository.repo,
                revision=repository.revision,
                endpoint=repository.endpoint,
                license=repository.license,
                sha256={**(old.sha256 if old else {}), file.name: found or identity(file)},
            )
            write_atomically(folder / origins.NOTE_NAME, msgspec.json.encode(note))

    def _clear_parts(self) -> None:
        """Remove the folder of parts once nothing in it is under way."""
        if not any(self._paths.parts.glob("*.part")):
            shutil.rmtree(self._paths.parts, ignore_errors=True)

    def _list_or_restore(self) -> ModelEntry:
        """List what was placed; where it can not be read, what it took the place of comes back."""
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
                    self._note(file, sha256_of(final, Control()) if file.sha256 else git_sha1_of(final))
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
        """Remove what a cancelled request left, unless another process is at it."""
        for file in self._request.files:
            _discard(self._paths.part(file))


def discard_parts(paths: Paths, repo: str) -> None:
    """Remove what was fetched of a repository and is neither installed nor under way."""
    for part in (paths.models / ".partial" / repo.replace("/", "--")).glob("*.part"):
        _discard(part)


def _discard(part: Path) -> None:
    with contextlib.suppress(filelock.Timeout), filelock.FileLock(part.with_suffix(".lock"), timeout=0):
        part.unlink(missing_ok=True)
        part.with_suffix(".json").unlink(missing_ok=True)


def _previous(final: Path) -> Path:
    """Where the older version of a file is until the newer one is known to work."""
    return final.with_name(f"{final.name}.previous")


def _keep(final: Path) -> None:
    """A second name for what is there, so that no moment is without it; a copy where a disk has no such names."""
    if not final.exists() or _previous(final).exists():
        return
    try:
        os.link(final, _previous(final))
    except OSError:
        final.replace(_previous(final))


def identity(file: RepoFile) -> str:
    """What tells this content from another: the promised hash, else the size."""
    return file.sha256 or file.git_sha1 or f"size-{file.size_bytes}"


def _noted_bytes(path: Path) -> int:
    """How far another process is, by its journal."""
    try:
        journal = msgspec.json.decode(path.with_suffix(".json").read_bytes())
        return sum(int(n) for n in journal["done"])
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return 0

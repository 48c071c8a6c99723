"""Starts the commands of set-up, mostly pip: none asks a question, and none continues after set-up has ended."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

# A line of `pip config list` for a setting that installs packages outside of the environment.
_ELSEWHERE = re.compile(r"^(?:global|install|:env:)\.(target|prefix|root)='(.+)'$", re.MULTILINE)


def pip(python: str, *arguments: str) -> list[str]:
    """The command line that runs an environment's pip."""
    return [python, "-m", "pip", *arguments, "--disable-pip-version-check"]


def variables(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for pip: the user's, plus `extra`, without settings that cannot work here.

    `user = true` in pip.conf fails in every virtual environment (pypa/pip, issue 8977). A question for a name or a
    password would wait unseen (issue 11979). Without questions, pip uses a keyring only if its provider is named.
    """
    own = {"PIP_USER": "0", "PIP_NO_INPUT": "1"}
    return {"PIP_KEYRING_PROVIDER": "subprocess", **os.environ, **own, **(extra or {})}


def settings_elsewhere(python: str) -> list[str]:
    """Pip's settings that install packages outside of its environment, such as "prefix = /usr/local"."""
    command = pip(python, "config", "list")
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=variables())
    return [f"{name} = {value}" for name, value in _ELSEWHERE.findall(done.stdout)]


def start(
    command: Sequence[str],
    *,
    stdout: int | IO[str] | None = None,
    env: Mapping[str, str] | None = None,
    own_session: bool = True,
) -> "subprocess.Popen[str]":
    """Start a command. What it prints as an error goes to `stdout` too, if that is given.

    own_session: Ctrl+C does not reach it, and `end` ends what it started as well.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=None if stdout is None else subprocess.STDOUT,
        text=True,
        errors="replace",
        env=variables() if env is None else env,
        start_new_session=own_session,
    )


def end(process: "subprocess.Popen[str]") -> None:
    """End a command, and in a session of its own also what it started, unless it has ended."""
    if process.poll() is None:
        if sys.platform == "win32":
            subprocess.run(["taskkill", "/T", "/F", "/PID", str(process.pid)], capture_output=True, check=False)
        else:
            with suppress(ProcessLookupError):
                if os.getpgid(process.pid) == process.pid:
                    os.killpg(process.pid, signal.SIGTERM)
                else:
                    process.terminate()
    process.wait()


@contextmanager
def running(
    command: Sequence[str],
    *,
    stdout: int | IO[str] | None = None,
    env: Mapping[str, str] | None = None,
    own_session: bool = True,
) -> "Iterator[subprocess.Popen[str]]":
    """A command, as in `start`, that ends if the block raises; else the block's end waits for it."""
    with start(command, stdout=stdout, env=env, own_session=own_session) as process:
        try:
            yield process
        except BaseException:  # Ctrl+C too
            end(process)
            raise


def run(command: Sequence[str]) -> None:
    """Run a command to its end. Raises: subprocess.CalledProcessError: it failed."""
    with running(command) as process:
        code = process.wait()
    if code:
        raise subprocess.CalledProcessError(code, command)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let a request to end, or a closed terminal, act like Ctrl+C, so that commands and temporary files go too."""
    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            before[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""Servers that clients start: a private one for a command, or one that other programs may use too."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from devices.child_command import own_command

if TYPE_CHECKING:
    from app.client import ChatClient

C = TypeVar("C", bound="ChatClient")

START_S: Final = 60.0  # imports on a crowded machine; a server that ended is told at once


def server_log() -> Path:
    """The log of this user's servers; those before it are next to it."""
    from engine.core.paths import user_paths  # noqa: PLC0415 - a private server has no log

    return user_paths().logs / "server.log"


def start_shared(host: str, port: int, log_file: Path, *, offline: bool) -> "subprocess.Popen[bytes]":
    """A server at an address where others find it, which writes to `log_file`; the log before is kept beside it.

    Raises: OSError: it cannot be started, or the log not written.
    """
    from engine.server.log_rate_limit import OWN_LOG  # noqa: PLC0415 - a private server has no log

    log_file.parent.mkdir(parents=True, exist_ok=True)
    more = {"PYTHONUNBUFFERED": "1", OWN_LOG: "1", **({"HF_HUB_OFFLINE": "1"} if offline else {})}
    with contextlib.suppress(OSError):
        log_file.replace(log_file.with_suffix(".log.1"))
    with log_file.open("a+b") as out:  # the server reads and appends: it keeps the file short
        return subprocess.Popen(
            own_command("serve", "--host", host, "--port", str(port)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=Path(__file__).resolve().parents[1],
            env={**os.environ, **more},
        )


class ServerProcess:
    """A private server that ends with this process, however this process ends."""

    def __init__(self, *arguments: str) -> None:
        command = own_command("serve", "--port", "0", "--private", str(os.getpid()), *arguments)
        # A group of its own: Ctrl-C is for the command, which says to the server what it means (pause, cancel).
        apart: dict[str, Any] = {"process_group": 0}
        if sys.platform == "win32":
            apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **apart,
        )
        self._stderr: deque[str] = deque(maxlen=50)
        self._drain = threading.Thread(target=self._read_stderr, daemon=True)
        self._drain.start()

    def connect(self, kind: type[C]) -> C:
        """A client of the server, once that takes requests.

        Raises: ServerNotStarted: it ended or did not come up in START_S.
        """
        from app.client import ServerNotStarted  # noqa: PLC0415 - while the server starts

        assert self._process.stdout is not None
        timer = threading.Timer(START_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        try:
            address = json.loads(line)
        except ValueError:
            self.stop()
            raise ServerNotStarted("; ".join(self._stderr)) from None
        return kind(address["url"], address["token"], local=True)

    def stop(self) -> None:
        """End the server and wait for it."""
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._drain.join(1)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._stderr.append(line.rstrip())

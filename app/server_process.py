"""Start server processes for clients: a private one for a command, or a shared one for other programs too."""

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

START_S: Final = 60.0  # imports are slow on a busy machine; a server that exits is reported immediately
# A server that is shutting down lets its jobs store their results (60 s) and then its runners their prefixes (120
# s; engine/jobs/jobs.py and engine/runner/watchdog.py). A killed server loses them.
END_S: Final = 200.0


def server_log() -> Path:
    """Log file of this user's servers; older logs are in the same folder."""
    from engine.core.paths import user_paths

    return user_paths().logs / "server.log"


def start_shared(host: str, port: int, log_file: Path, *, offline: bool) -> "subprocess.Popen[bytes]":
    """Start a shared server that logs to `log_file`; the previous log is renamed to `.log.1`.

    Raises: OSError: the server cannot be started or the log cannot be written.
    """
    from app.settings import given_environment
    from engine.server.log_rate_limit import OWN_LOG

    log_file.parent.mkdir(parents=True, exist_ok=True)
    more = {"PYTHONUNBUFFERED": "1", OWN_LOG: "1", **({"HF_HUB_OFFLINE": "1"} if offline else {})}
    with contextlib.suppress(OSError):
        log_file.replace(log_file.with_suffix(".log.1"))
    with log_file.open("a+b") as out:  # "+": the server also reads its log in order to shorten it
        return subprocess.Popen(
            own_command("serve", "--host", host, "--port", str(port)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=Path(__file__).resolve().parents[1],
            env={**given_environment(), **more},  # the server reads the settings itself: they may have changed
        )


class ServerProcess:
    """A private server that ends with this process, even if this process crashes."""

    def __init__(self, *arguments: str) -> None:
        command = own_command("serve", "--port", "0", "--private", str(os.getpid()), *arguments)
        # Separate process group: Ctrl-C reaches only the command, which then pauses or cancels its job on the
        # server.
        from app.settings import given_environment

        apart: dict[str, Any] = {"process_group": 0}
        if sys.platform == "win32":
            apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=given_environment(),
            **apart,
        )
        self._stderr: deque[str] = deque(maxlen=50)
        self._drain = threading.Thread(target=self._read_stderr, daemon=True)
        self._drain.start()

    def connect(self, kind: type[C]) -> C:
        """Wait until the server accepts requests; return a client for it.

        Raises: ServerNotStarted: it exited, or did not start within START_S.
        """
        from app.client import ServerNotStarted

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
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also if Ctrl-C ends the wait
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

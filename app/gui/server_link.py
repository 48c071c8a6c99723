"""The window's connection to the local server: finds a running one, starts one if there is none."""

import contextlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app import client
from app.gui.api import ApiError
from devices.child_command import own_command
from engine.paths import user_paths

log = logging.getLogger(__name__)
START_S = 20.0
_LOG_TAIL = 2000


class _Events:
    """A stream over a connection of its own, so that closing it ends it from any thread."""

    def __init__(self, connection: client.Client, path: str, body: Mapping[str, Any] | None) -> None:
        self._connection = connection
        self._path, self._body = path, body
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            method = "GET" if self._body is None else "POST"
            body = None if self._body is None else dict(self._body)
            with _errors():
                yield from self._connection.events(self._path, body, method)
        except (ApiError, RuntimeError):
            if not self._closed.is_set():
                raise

    def close(self) -> None:
        """End the stream."""
        if not self._closed.is_set():
            self._closed.set()
            self._connection.close()


class ServerLink:
    """The `Api` of the window. Thread-safe; every call may find that the server moved."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: client.Client | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where the server is, or an empty string."""
        return self._client.url if self._client else ""

    @property
    def owned(self) -> bool:
        """True when this window started the server."""
        return self._process is not None and self._process.poll() is None

    @property
    def token(self) -> str:
        """The token of the management routes."""
        return (self._client.token or "") if self._client else ""

    def start(self, host: str, port: int, *, offline: bool = False) -> str:
        """Find a server or start one, and wait until it answers; returns its address.

        Raises: ApiError: it did not start; the message has the last lines of its log.
        """
        with self._lock:
            if self._find() is not None:
                return self.url
            self._process = self._spawn(host, port, offline=offline)
            deadline = time.monotonic() + START_S
            while time.monotonic() < deadline:
                if self._find() is not None:
                    return self.url
                if self._process.poll() is not None:
                    break
                time.sleep(0.05)
            self._end_process()
            raise ApiError(0, f"The server did not start. {self._log_tail()}", "server_not_started")

    def stop(self) -> None:
        """Stop the server if this window started it, and drop the connection."""
        with self._lock:
            self._end_process()
            self._drop()

    def disconnect(self) -> None:
        """Drop the connection; a server started by others goes on."""
        with self._lock:
            self._drop()

    def get(self, path: str) -> Any:
        """JSON of a GET."""
        with _errors():
            return self._connected().get(path)

    def text(self, path: str) -> str:
        """Text of a GET."""
        with _errors():
            return self._connected().text(path)

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """JSON of a POST."""
        with _errors():
            return self._connected().post(path, dict(body or {}))

    def delete(self, path: str) -> Any:
        """JSON of a DELETE."""
        with _errors():
            return self._connected().delete(path)

    def stream(self, path: str, body: Mapping[str, Any] | None = None) -> _Events:
        """Server-sent events, over a connection of their own."""
        known = self._connected()
        return _Events(client.Client(known.url, known.token), path, body)

    def _connected(self) -> client.Client:
        with self._lock:
            found = self._client or self._find()
        if found is None:
            raise ApiError(0, "no server is running", "unreachable")
        return found

    def _find(self) -> client.Client | None:
        if self._client is not None and self._client.healthy():
            return self._client
        self._drop()
        self._client = client.running_server()
        return self._client

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _spawn(self, host: str, port: int, *, offline: bool) -> subprocess.Popen[bytes]:
        log_file = server_log()
        log_file.parent.mkdir(parents=True, exist_ok=True)
        command = own_command("serve", "--host", host, "--port", str(port))
        with log_file.open("wb") as out:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=Path(__file__).resolve().parents[2],
                env={**os.environ, "PYTHONUNBUFFERED": "1", **({"HF_HUB_OFFLINE": "1"} if offline else {})},
            )

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @staticmethod
    def _log_tail() -> str:
        try:
            lines = server_log().read_text("utf-8", "replace")[-_LOG_TAIL:].strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""


def server_log() -> Path:
    """Where the output of a server started by the window goes."""
    return user_paths().logs / "server.log"


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """The client's errors as the window's."""
    try:
        yield
    except client.ApiError as error:
        raise ApiError(error.status, error.message, error.code, error.facts) from error
    except client.ServerUnreachable as error:
        raise ApiError(0, str(error), "unreachable") from error

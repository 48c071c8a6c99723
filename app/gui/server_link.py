"""The window's connection to the local server. Finds a running server or starts one."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from app.client import ApiError, Client, Routes, ServerNotStarted, ServerUnreachable, running_server
from app.client.errors import ServerReplaced
from app.client.transport import Body
from app.server_process import END_S, server_log, start_shared
from engine.core.paths import user_paths

if TYPE_CHECKING:
    import psutil

# The server process of this window, or of an earlier window that was killed before it stopped its server.

# Two reads of one process's start time differ by less than this. A process id is not reused within this time.
_SAME_START_S = 1.0


class ChildServer:
    """A server process that ends with the window.

    `popen` is None for an adopted one, which is not a child process.
    """

    def __init__(self, process: "psutil.Process", popen: "subprocess.Popen[bytes] | None" = None) -> None:
        self._process, self._popen = process, popen

    @property
    def alive(self) -> bool:
        if self._popen is not None:
            return self._popen.poll() is None
        return self._process.is_running() and self._process.status() != "zombie"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code. None while the process runs, or if it was adopted."""
        return self._popen.poll() if self._popen is not None else None

    def end(self) -> None:
        import psutil

        with suppress(psutil.NoSuchProcess):
            self._process.terminate()
            try:
                self._wait(END_S)
            except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
                self._process.kill()
                self._wait(None)
        _note().unlink(missing_ok=True)

    def _wait(self, seconds: float | None) -> None:
        if self._popen is not None:
            self._popen.wait(seconds)
        else:
            self._process.wait(seconds)


def started(popen: "subprocess.Popen[bytes]") -> ChildServer:
    """Wrap the server that this window just started. Records it, so that the next window can adopt it."""
    import psutil

    process = psutil.Process(popen.pid)
    note = _note()
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"pid": popen.pid, "started": process.create_time()}), "utf-8")
    return ChildServer(process, popen)


def adopted(pid: int) -> ChildServer | None:
    """The server `pid` if an earlier window started it; None otherwise, for example for a terminal's server."""
    import psutil

    try:
        saved = json.loads(_note().read_text("utf-8"))
        process = psutil.Process(int(saved["pid"]))
        same = abs(process.create_time() - float(saved["started"])) < _SAME_START_S
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return ChildServer(process) if same and process.pid == pid else None


def _note() -> Path:
    return user_paths().state / "window-server.json"


# A server that exits is reported immediately. A slow one, on a busy computer, gets this time.
START_S = 60.0
_LOG_TAIL = 2000
T = TypeVar("T")


class _Events(Generic[T]):
    """A stream on a separate connection, so that any thread can end it by closing the connection.

    `again` returns a new connection after the server rejected the token, or None if there is none.
    """

    def __init__(
        self,
        connection: Client,
        begin: Callable[[Client], Iterator[T]],
        again: Callable[[], Client | None],
    ) -> None:
        self._connection, self._begin, self._again = connection, begin, again
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[T]:
        try:
            yield from self._events()
        except (ApiError, RuntimeError):
            if not self._closed.is_set():
                raise

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._connection.close()

    def _events(self) -> Iterator[T]:
        has_started = False
        try:
            for event in self._begin(self._connection):
                has_started = True
                yield event
        except ApiError as error:
            other = None if has_started or not _is_another(error) else self._again()
            if other is None:
                raise
            self._connection.close()
            self._connection = other
            yield from self._begin(other)


class ServerLink(Routes):
    """The server routes for the window. Thread-safe; reconnects if the server's port or token changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._ended = threading.Event()
        self._process: ChildServer | None = None

    @property
    def url(self) -> str:
        return self._client.url if self._client else ""

    @property
    def owned(self) -> bool:
        """Whether this window, or an earlier one that was killed, started the running server."""
        return self._process is not None and self._process.alive

    @property
    def remote(self) -> bool:
        """Whether the server is on a remote host or was given by address: its local process id is unknown."""
        return self._client is not None and not self._client.pid

    @property
    def crashed(self) -> bool:
        """Whether this window's server ended unexpectedly."""
        return self._process is not None and not self._process.alive

    @property
    def exit_text(self) -> str:
        """Exit code of the crashed server if known, else the last line of its log."""
        code = self._process.exit_code if self._process is not None else None
        return f"exit code {code}" if code is not None else self._log_tail()

    @property
    def token(self) -> str:
        """Token for the management routes."""
        return (self._client.token or "") if self._client else ""

    def start(self, host: str, port: int, *, offline: bool = False) -> str:
        """Find or start a server and wait until it answers. Returns its URL.

        Raises: ServerNotStarted: with the last line of its log, and whether the time limit was reached.
        """
        with self._lock:
            if self._find() is not None:
                return self.url
            self._process = self._spawn(host, port, offline=offline)
            deadline = time.monotonic() + START_S
            while time.monotonic() < deadline:
                if self._find() is not None:
                    return self.url
                if not self._process.alive or self._ended.is_set():
                    break
                time.sleep(0.05)
            late = f"It gave no answer within {START_S:.0f} s. " if self._process.alive else ""
            # Read the log before the process ends: its shutdown messages do not explain the delay.
            reason = f"{late}{self._log_tail()}"
            self._end_process()
            raise ServerNotStarted(reason)

    def stop(self) -> None:
        """Stop the server if this window started it, and drop the connection."""
        with self._lock:
            self._end_process()
            self._drop()

    def hang_up(self) -> None:
        """Abort all requests and reject new ones; the window is closing. Thread-safe."""
        self._ended.set()
        client = self._client
        if client is not None:
            client.close()

    def disconnect(self) -> None:
        """Drop the connection. A server that this window did not start keeps running."""
        with self._lock:
            self._drop()

    def get(self, path: str, answer: type[T], **query: Any) -> T:
        """Send a GET request and return its response."""
        return self._call(lambda client: client.get(path, answer, **query))

    def post(self, path: str, answer: type[T], body: Body = None) -> T:
        """Send a POST request and return its response."""
        return self._call(lambda client: client.post(path, answer, body))

    def delete(self, path: str, answer: type[T]) -> T:
        """Send a DELETE request and return its response."""
        return self._call(lambda client: client.delete(path, answer))

    def put(self, path: str, answer: type[T], body: Body = None) -> T:
        """Send a PUT request and return its response."""
        return self._call(lambda client: client.put(path, answer, body))

    def stream(self, path: str, event: type[T], body: Body = None) -> _Events[T]:
        """Server-sent events on a separate connection."""
        client = self._connected()

        def again() -> Client | None:
            return _copy(self._connected()) if self._moved(client) else None

        return _Events(_copy(client), lambda connection: connection.stream(path, event, body), again)

    def _call(self, call: Callable[[Client], T]) -> T:
        """Run `call`. If the server rejects the token, it was replaced: find the new one and retry once."""
        client = self._connected()
        try:
            return call(client)
        except ApiError as error:
            if not _is_another(error) or not self._moved(client):
                raise
        return call(self._connected())

    def _moved(self, client: Client) -> bool:
        """Whether the server's URL or token differs from that of `client`."""
        with self._lock:
            if self._client is client:
                self._drop()
                self._find()
            return self._client is not None and (self._client.url, self._client.token) != (client.url, client.token)

    def _connected(self) -> Client:
        with self._lock:
            client = None if self._ended.is_set() else self._client or self._find()
        if client is None:
            raise ServerUnreachable("this computer", "none is running")
        return client

    def _find(self) -> Client | None:
        if self._client is not None and self._client.healthy():
            return self._client
        self._drop()
        self._client = running_server()
        if self._client is not None and self._client.pid and not self.owned:
            self._process = adopted(self._client.pid)
        return self._client

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _spawn(self, host: str, port: int, *, offline: bool) -> ChildServer:
        return started(start_shared(host, port, server_log(), offline=offline))

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    @staticmethod
    def _log_tail() -> str:
        try:
            lines = server_log().read_text("utf-8", "replace")[-_LOG_TAIL:].strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""


def _is_another(error: ApiError) -> bool:
    """Whether the error shows that the server was replaced: the token is rejected or unknown."""
    return error.status == HTTPStatus.UNAUTHORIZED or isinstance(error, ServerReplaced)


def _copy(client: Client) -> Client:
    return Client(client.url, client.token, client.pid, local=client.local)

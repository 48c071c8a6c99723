"""The window's connection to the local server: finds a running one, starts one if there is none."""

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
from app.server_process import server_log, start_shared
from engine.core.paths import user_paths

if TYPE_CHECKING:
    import psutil

# The server process of the window, and of an earlier window that was killed before it could end its server.

# A server that ends takes its work along and leaves no half files; on a busy computer that takes a while.
_END_S = 20.0
# Clocks of two readings of one start time differ by less; a process id is not given again that soon.
_SAME_START_S = 1.0


class ChildServer:
    """A server that ends with the window. `popen` is None for an adopted one, which is no child of this process."""

    def __init__(self, process: "psutil.Process", popen: "subprocess.Popen[bytes] | None" = None) -> None:
        self._process, self._popen = process, popen

    @property
    def alive(self) -> bool:
        """It runs."""
        if self._popen is not None:
            return self._popen.poll() is None
        return self._process.is_running() and self._process.status() != "zombie"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs, or when it was adopted."""
        return self._popen.poll() if self._popen is not None else None

    def end(self) -> None:
        """End it and wait for it."""
        import psutil  # noqa: PLC0415 - not before the window is shown

        with suppress(psutil.NoSuchProcess):
            self._process.terminate()
            try:
                self._wait(_END_S)
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
    """The server this window just started; noted for the next window, should this one be killed."""
    import psutil  # noqa: PLC0415 - not before the window is shown

    process = psutil.Process(popen.pid)
    note = _note()
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"pid": popen.pid, "started": process.create_time()}), "utf-8")
    return ChildServer(process, popen)


def adopted(pid: int) -> ChildServer | None:
    """The server `pid` if an earlier window started it; None if it is somebody else's, such as a terminal's."""
    import psutil  # noqa: PLC0415 - not before the window is shown

    try:
        saved = json.loads(_note().read_text("utf-8"))
        process = psutil.Process(int(saved["pid"]))
        same = abs(process.create_time() - float(saved["started"])) < _SAME_START_S
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return ChildServer(process) if same and process.pid == pid else None


def _note() -> Path:
    return user_paths().state / "window-server.json"


# A server that has ended is told at once; one that is only slow, on a crowded computer, is waited for.
START_S = 60.0
_LOG_TAIL = 2000
T = TypeVar("T")


class _Events(Generic[T]):
    """A stream over a connection of its own, so that closing it ends it from any thread.

    `again` gives another connection when the server did not take the token, or None when there is no other.
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
        """End the stream."""
        if not self._closed.is_set():
            self._closed.set()
            self._connection.close()

    def _events(self) -> Iterator[T]:
        begun = False
        try:
            for event in self._begin(self._connection):
                begun = True
                yield event
        except ApiError as error:
            other = None if begun or not _is_another(error) else self._again()
            if other is None:
                raise
            self._connection.close()
            self._connection = other
            yield from self._begin(other)


class ServerLink(Routes):
    """The routes as the window calls them. Thread-safe; the server may move or change its token."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._ended = threading.Event()
        self._process: ChildServer | None = None

    @property
    def url(self) -> str:
        """Where the server is, or an empty string."""
        return self._client.url if self._client else ""

    @property
    def owned(self) -> bool:
        """True when this window, or one before it that was killed, started the server."""
        return self._process is not None and self._process.alive

    @property
    def remote(self) -> bool:
        """True when the server is on another machine, or named by address: no process of this computer is known."""
        return self._client is not None and not self._client.pid

    @property
    def crashed(self) -> bool:
        """True when the server of this window ended by itself."""
        return self._process is not None and not self._process.alive

    @property
    def exit_words(self) -> str:
        """How the server that crashed ended: its exit code where that is known, else the last line it wrote."""
        code = self._process.exit_code if self._process is not None else None
        return f"exit code {code}" if code is not None else self._log_tail()

    @property
    def token(self) -> str:
        """The token of the management routes."""
        return (self._client.token or "") if self._client else ""

    def start(self, host: str, port: int, *, offline: bool = False) -> str:
        """Find a server or start one, and wait until it answers; returns its address.

        Raises: ServerNotStarted: with the last line of its log, and whether time was up.
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
            reason = f"{late}{self._log_tail()}"  # before it is ended: its farewell explains nothing
            self._end_process()
            raise ServerNotStarted(reason)

    def stop(self) -> None:
        """Stop the server if this window started it, and drop the connection."""
        with self._lock:
            self._end_process()
            self._drop()

    def hang_up(self) -> None:
        """End what is under way from any thread, and begin nothing more: the window closes."""
        self._ended.set()
        client = self._client
        if client is not None:
            client.close()

    def disconnect(self) -> None:
        """Drop the connection; a server started by others continues."""
        with self._lock:
            self._drop()

    def get(self, path: str, answer: type[T], **query: Any) -> T:
        """The answer of a GET."""
        return self._ask(lambda client: client.get(path, answer, **query))

    def post(self, path: str, answer: type[T], body: Body = None) -> T:
        """The answer of a POST."""
        return self._ask(lambda client: client.post(path, answer, body))

    def delete(self, path: str, answer: type[T]) -> T:
        """The answer of a DELETE."""
        return self._ask(lambda client: client.delete(path, answer))

    def put(self, path: str, answer: type[T], body: Body = None) -> T:
        """The answer of a PUT."""
        return self._ask(lambda client: client.put(path, answer, body))

    def stream(self, path: str, event: type[T], body: Body = None) -> _Events[T]:
        """Server-sent events, over a connection of their own."""
        client = self._connected()

        def again() -> Client | None:
            return _copy(self._connected()) if self._moved(client) else None

        return _Events(_copy(client), lambda connection: connection.stream(path, event, body), again)

    def _ask(self, call: Callable[[Client], T]) -> T:
        """Call; a server that does not take the token is another one than before, so look for it once more."""
        client = self._connected()
        try:
            return call(client)
        except ApiError as error:
            if not _is_another(error) or not self._moved(client):
                raise
        return call(self._connected())

    def _moved(self, client: Client) -> bool:
        """Whether there is another server, or another token, than `client` has."""
        with self._lock:
            if self._client is client:
                self._drop()
                self._find()
            return self._client is not None and (self._client.url, self._client.token) != (client.url, client.token)

    def _connected(self) -> Client:
        with self._lock:
            found = None if self._ended.is_set() else self._client or self._find()
        if found is None:
            raise ServerUnreachable("this computer", "none is running")
        return found

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
    """Another server than before is there: it does not take the token, or does not know it."""
    return error.status == HTTPStatus.UNAUTHORIZED or isinstance(error, ServerReplaced)


def _copy(client: Client) -> Client:
    return Client(client.url, client.token, client.pid, local=client.local)

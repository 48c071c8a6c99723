"""The store with its one thread: every read and write of the chats passes through it, in order."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import apsw

from app.db import backup
from app.db.connection import Opened, open_in_memory, open_store
from app.db.errors import StoreInUse, StoreUnwritable

P = ParamSpec("P")
T = TypeVar("T")


class Store:
    """Runs functions on the connection, one after the other, on a thread of its own."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._closed = threading.Event()

    @property
    def in_memory(self) -> bool:
        """True when nothing is kept after the process ends."""
        return str(self.opened.path) == ":memory:"

    def submit(
        self, function: Callable[Concatenate[apsw.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Run `function(connection, ...)` on the store's thread.

        The future raises StoreUnwritable when the disk refuses, StoreInUse when another process holds the
        file; the transaction is rolled back.
        """

        def run() -> T:
            try:
                return function(self.opened.connection, *args, **kwargs)
            except apsw.BusyError as error:
                raise StoreInUse(self.opened.path) from error
            except (apsw.FullError, apsw.IOError, apsw.ReadOnlyError, apsw.CantOpenError) as error:
                raise StoreUnwritable(self.opened.path, str(error)) from error

        return self._executor.submit(run)

    def back_up_daily(self, keep: int) -> Path | None:
        """Make today's copy if there is none yet; call it on a worker thread.

        It reads through a connection of its own, so that chats are written meanwhile.
        """
        if self.in_memory:
            return None
        reader = apsw.Connection(str(self.opened.path))
        try:
            reader.set_busy_timeout(5000)
            return backup.back_up_daily(reader, self.opened.path, keep)
        finally:
            reader.close()

    def close(self) -> None:
        """Finish what was submitted and close the file."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._executor.submit(self.opened.connection.close)
        self._executor.shutdown(wait=True)


def open_or_memory(path: Path) -> tuple[Store, StoreUnwritable | None]:
    """Open the store, or one in memory with the reason when the home cannot be written.

    Raises: StoreInUse, StoreFromNewerVersion.
    """
    try:
        return Store(open_store(path)), None
    except StoreUnwritable as error:
        return Store(open_in_memory()), error

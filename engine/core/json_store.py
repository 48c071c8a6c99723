"""Small state files, one JSON value each. They are written atomically, with the version of their format."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from devices.atomic_file import locked, write_atomically
from devices.msgspec_lock import learned
from engine.core.errors import EnvironmentFault
from engine.message_catalog.reasons import because

log = logging.getLogger(__name__)
T = TypeVar("T")
V = TypeVar("V")
_LEFT: Final = "It is left as it is and read again next time."
_SET_ASIDE: Final = "It is taken as empty, and kept aside when it is written next."
# A stamp that no file has.
_UNREAD: Final = (-1, -1, -1)


class CorruptStateFile(EnvironmentFault):
    """A state file exists but cannot be used; `reason` says why."""

    code = "damaged_state_file"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(because("state_file_damaged", path=str(path), why=reason))
        self.path = path
        self.reason = reason


class NewerStateFile(CorruptStateFile, OSError):
    """A state file is of a newer program. It is never written: an OSError for those who can do without it."""

    code = "newer_state_file"

    def __init__(self, path: Path, version: int, own_version: int) -> None:
        fact = because("state_file_newer", path=str(path), version=version, own_version=own_version)
        EnvironmentFault.__init__(self, fact)
        self.path, self.reason = path, str(fact)


class _Newer(ValueError):
    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class _Version(msgspec.Struct):
    version: int | None = None


class _Envelope(msgspec.Struct, Generic[T]):
    version: int
    data: T


class JsonStore(Generic[T]):
    """Stores a value of type `kind` in the file `path` (None: in memory only). Thread-safe.

    If another process changes the file, it is read again. Use `change`, or `locked`, to write a value that depends
    on the one read; otherwise a change by another process may be lost. Files without a version have the first
    format. The returned value is shared: change only a copy. An unreadable file is never lost: the next `put`
    renames it, or refuses if it is of a newer program. What can be measured again is not `durable`: a power cut may
    lose it.
    """

    def __init__(
        self,
        path: Path | None,
        kind: type[T],
        empty: Callable[[], T],
        *,
        version: int = 1,
        private: bool = False,
        durable: bool = True,
    ) -> None:
        self.path = path
        self._kind, self._empty, self._version = kind, empty, version
        self._private, self._durable = private, durable
        self._envelope: Any = _Envelope[kind]  # type: ignore[valid-type]  # a form to decode, made at run time
        self._lock = threading.RLock()
        self._holder: int | None = None  # the thread that is inside `locked`
        self._stamp: tuple[int, int, int] | None = None
        self._value: T | None = None
        self._damage: CorruptStateFile | None = None
        self._missed: OSError | None = None  # why the file could not be read; callers got the empty value

    def read(self) -> T:
        """Return the value, or the empty one if there is no file. Raises: CorruptStateFile."""
        with self._lock:
            stamp = self._file_stamp()
            if self.path is not None and stamp != self._stamp:
                self._stamp, self._value, self._damage = stamp, None, None
                if stamp is not None:
                    self._load(self.path)
            self._missed = None
            if self._damage is not None:
                raise self._damage
            if self._value is None:
                self._value = self._empty()
            return self._value

    def get(self) -> T:
        """Return the value; if the file cannot be used, log a warning and return the empty value."""
        with self._lock:
            previous = self._damage
            try:
                return self.read()
            except CorruptStateFile as error:
                if self._missed is not None or error is not previous:
                    is_left = self._missed is not None or isinstance(error, NewerStateFile)
                    log.warning("%s %s", error, _LEFT if is_left else _SET_ASIDE)
                return self._empty()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the value against changes by others; reads inside see the newest value. Raises: OSError."""
        if self.path is None:
            with self._lock:
                yield
        elif self._holder == threading.get_ident():
            yield
        else:  # the file's lock first: threads that only read do not wait for another process
            with locked(self.path), self._lock:
                self._holder, self._stamp = threading.get_ident(), _UNREAD
                try:
                    yield
                finally:
                    self._holder = None

    def change(self, change: Callable[[T], T]) -> T:
        """Replace the value by `change(value)` and return it. An exception in `change` changes nothing.

        Raises: OSError: as `put` and `locked`.
        """
        with self.locked():
            old = self.get()
            new = change(old)
            if new is not old:
                self.put(new)
            return new

    def remove(self) -> None:
        """Delete the file and go back to the empty value. Raises: OSError."""
        with self.locked():
            if self.path is None:
                self._value = None
            else:
                self.path.unlink(missing_ok=True)

    def put(self, value: T) -> None:
        """Replace the value without looking at the old one.

        Raises: OSError: writing failed, or the last read failed, so that `value` would be based on nothing, or the
        file is of a newer program. It is then unchanged.
        """
        with self._lock:
            if self.path is not None:
                missed, self._missed = self._missed, None
                with contextlib.suppress(CorruptStateFile):
                    self.read()
                missed, self._missed = missed or self._missed, None
                if missed is not None:
                    raise OSError(missed.errno, missed.strerror, str(self.path)) from missed
                if isinstance(self._damage, NewerStateFile):
                    raise self._damage
                if self._damage is not None:
                    self.path.replace(self.path.with_name(f"{self.path.name}.corrupt-{int(time.time())}"))
                raw = msgspec.json.encode(_Envelope(self._version, value))
                write_atomically(
                    self.path,
                    msgspec.json.format(raw, indent=1),
                    mode=0o600 if self._private else 0o666,
                    durable=self._durable,
                )
            self._stamp, self._value, self._damage = self._file_stamp(), value, None

    def _file_stamp(self) -> tuple[int, int, int] | None:
        """Return a stamp that changes with the file.

        It has the inode too: two files may have the same size and clock tick.
        """
        try:
            status = self.path.stat() if self.path is not None else None
        except OSError:
            return None
        return (status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else None

    def _load(self, path: Path) -> None:
        try:
            self._value = self._decode(path.read_bytes())
        except (IsADirectoryError, PermissionError) as error:
            self._damage = CorruptStateFile(path, error.strerror or str(error))
        except OSError as error:  # temporary, for lack of descriptors or memory: the file may be fine
            self._stamp, self._missed = None, error
            raise CorruptStateFile(path, error.strerror or str(error)) from error
        except _Newer as error:
            self._damage = NewerStateFile(path, error.version, self._version)
        except (ValueError, RecursionError) as error:
            self._damage = CorruptStateFile(path, str(error).rstrip("."))

    def _decode(self, raw: bytes) -> T:
        try:
            version = msgspec.json.decode(raw, type=learned(_Version)).version
        except msgspec.ValidationError:  # a list, or a table with a row of this name
            version = None
        if version is None:
            return msgspec.json.decode(raw, type=learned(self._kind))
        if version > self._version:
            raise _Newer(version)
        envelope: _Envelope[T] = msgspec.json.decode(raw, type=learned(self._envelope))
        return envelope.data


def with_row(table: dict[str, V], key: str, value: V | None) -> dict[str, V]:
    """Return a copy of a table with this row at its end; None removes the row."""
    others = {name: row for name, row in table.items() if name != key}
    return others if value is None else {**others, key: value}

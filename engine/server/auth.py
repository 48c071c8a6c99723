"""Access control: API keys for inference, the local token for management."""

import hmac
import json
import os
import secrets
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from devices.atomic_file import write_atomically
from devices.errors import TesseraError
from engine.core.keys import BadKeyFile, KeyStore, Scope, digest
from engine.core.ownership import LOCAL
from engine.core.program_keys import ProgramKeys
from engine.message_catalog.reasons import because

MANAGEMENT_PREFIX: Final = "/tessera/"
# Routes of other protocols that change files on disk.
MANAGEMENT_PATHS: Final = frozenset({"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete"})


# Routes without private data, open to everyone.
OPEN_PATHS: Final = frozenset({"/health", "/v1/health", "/", "/docs", "/chat"})

# Wrong keys per address before it must wait, and the time window. Chosen far above the number of typing errors.
MAX_FAILURES: Final = 10
FAILURE_WINDOW_S: Final = 60.0
# Maximum number of stored addresses; the oldest is dropped first.
MAX_ADDRESSES: Final = 10_000
# A loopback port answers immediately or not at all.
_LOOK_S: Final = 0.5


class Unauthorized(TesseraError):
    """The request has no valid key for this route."""

    code = "invalid_api_key"


class Forbidden(TesseraError):
    """The key is valid but does not permit this."""

    code = "insufficient_scope"


class TooManyFailures(TesseraError):
    """The address sent too many wrong keys; it may retry after `retry_after_s`."""

    code = "too_many_failures"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(because("too_many_wrong_keys", seconds=retry_after_s))
        self.retry_after_s = retry_after_s


def presented_keys(headers: Mapping[str, str]) -> list[str]:
    """All keys in a request, from every header that clients use."""
    keys = []
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        keys.append(value.strip())
    keys.extend(headers[name] for name in ("x-api-key", "api-key") if headers.get(name))
    return keys


def manages(path: str) -> bool:
    """Whether the route changes files or loaded models, or returns more than a client needs."""
    return path.startswith(MANAGEMENT_PREFIX) or path.rstrip("/") in MANAGEMENT_PATHS


class Failures:
    """Counts wrong keys per address in a sliding window."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, address: str) -> None:
        """Record a wrong key."""
        times = self._times.setdefault(address, deque(maxlen=MAX_FAILURES))
        times.append(self._clock())
        self._times.move_to_end(address)
        if len(self._times) > MAX_ADDRESSES:
            self._times.popitem(last=False)

    def check(self, address: str) -> None:
        """Raises: TooManyFailures: the address must wait."""
        times = self._times.get(address)
        if times is None or len(times) < MAX_FAILURES:
            return
        wait = times[0] + FAILURE_WINDOW_S - self._clock()
        if wait > 0:
            raise TooManyFailures(int(wait) + 1)


class Caller(NamedTuple):
    """Who sent a request: the owner of what it stores, and whether it is one of the user's own programs.

    Without keys in use the owner is "" and everything is shared. The user's own programs have the local token or a
    key with the scope `manage`.
    """

    owner: str = ""
    is_own: bool = False


class Access:
    """Decides whether a request may use a route, by its path and keys.

    Without API keys, everyone on loopback may run inference. Management needs the local token or a key with the
    scope `manage`. A `public` server always requires a key: after its last key is removed, it accepts only the
    local token.
    """

    def __init__(
        self,
        token: str,
        api_keys: Iterable[str] = (),
        store: KeyStore | None = None,
        programs: ProgramKeys | None = None,
        *,
        public: bool = False,
    ) -> None:
        self.token = token
        self.public = public
        self.store = store or KeyStore()
        self.programs = programs or ProgramKeys()
        self._api_keys = tuple(api_keys)
        self.failures = Failures()

    @property
    def needs_key(self) -> bool:
        """Whether inference requires a key."""
        return bool(self.public or self._api_keys or self.store.in_use())

    def check(self, path: str, headers: Mapping[str, str], address: str = "") -> Caller:
        """Allow the request, or raise Unauthorized, Forbidden or TooManyFailures. Open paths need no key."""
        if path in OPEN_PATHS:
            return Caller()
        keys = presented_keys(headers)
        # The GUI and CLI may share their address with a client that sends wrong keys; they are never locked out.
        if any(_same(key, self.token) for key in keys):
            return Caller(self._local_owner(), is_own=True)
        valid = [(key, scopes_of_key) for key in keys if (scopes_of_key := self._scopes(key)) is not None]
        scopes = [scopes_of_key for _, scopes_of_key in valid]
        is_own = any("manage" in allowed for allowed in scopes)
        # A valid key never waits because of wrong keys from its address. Keys have 256 bits and cannot be guessed.
        if keys and not scopes and (self.needs_key or manages(path)):
            self.failures.check(address)
            self.failures.note(address)
            raise Unauthorized(because("key_not_valid"))
        if manages(path):
            if is_own:
                return Caller(_owner(valid[0][0]), is_own=True)
            if scopes:
                raise Forbidden(because("key_without_manage"))
            raise Unauthorized(because("needs_management"))
        if self.needs_key and not scopes:
            raise Unauthorized(because("needs_key"))
        # a program's key does not make keys mandatory
        return Caller(_owner(valid[0][0]) if valid and self.needs_key else "", is_own=is_own)

    def _local_owner(self) -> str:
        try:
            return LOCAL if self.needs_key else ""
        except BadKeyFile:  # the user's own programs keep access
            return LOCAL

    def _scopes(self, key: str) -> tuple[Scope, ...] | None:
        if any(_same(key, valid) for valid in self._api_keys):
            return ("chat",)
        return self.store.scopes(key) or (("chat",) if self.programs.knows(key) else None)


def _owner(key: str) -> str:
    """An identifier of the key's holder that does not reveal the key and is the same after a restart."""
    return digest(f"prefix owner {digest(key)}")[:32]


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode("utf-8", "surrogatepass"), b.encode("utf-8", "surrogatepass"))


def new_token() -> str:
    """A new random token."""
    return secrets.token_urlsafe(32)


def write_server_file(path: Path, url: str, token: str) -> None:
    """Write the server's URL and token to a file that only this user can read."""
    raw = json.dumps({"url": url, "token": token, "pid": os.getpid()}).encode()
    write_atomically(path, raw, mode=0o600, durable=False)  # it ends with the process


def running_server_url(path: Path, own: str) -> str | None:
    """The URL in the server file if its process runs and its port accepts connections, else None.

    `own` is this process's URL. After a crash, the file may name the same URL, which this process now uses.
    """
    try:
        note = json.loads(path.read_text())
        url, pid = str(note["url"]), int(note["pid"])
        if pid == os.getpid() or url == own or not _runs(pid):
            return None
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=_LOOK_S):
            return url
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _runs(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid)


def remove_server_file(path: Path) -> None:
    """Remove the file if it belongs to this process."""
    try:
        if json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()
    except (OSError, ValueError, KeyError):
        return

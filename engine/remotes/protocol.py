"""Messages between a worker, the tunnel's process and the server: one JSON value per line."""

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

from devices.msgspec_lock import learned
from engine.message_catalog.reasons import Reason
from engine.remotes.types import Link, Remote, RemoteFacts, State

# Only a reply with facts is longer than a few hundred bytes.
LONGEST_LINE: Final = 1 << 16
BEAT_S: Final = 1.0
# A session ends after this silence of the other side. A link that carries a load at 10 Mbit/s delays a reply by 3
# s.
SILENT_S: Final = 10.0
# Maximum bytes for one measurement of the link.
MOST_MEASURED_BYTES: Final = 16 << 20


# ---- messages to a worker, and its replies


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`facts`; `ping`; `sink`: num_bytes follow; `source`: num_bytes are requested; `open` a session."""

    do: Literal["facts", "ping", "sink", "source", "open"]
    num_bytes: int = 0


class WorkerReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's reply. `port` is a session's, on the worker's loopback; `held_bytes` is its process's memory."""

    facts: RemoteFacts | None = None
    port: int = 0
    held_bytes: int = 0
    error: str = ""


# ---- to the tunnel's process, and back


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Read the host's `key`, `check` the worker and the link, or `open` a session. `kernel` is the local build."""

    do: Literal["key", "check", "open"]
    remote: Remote
    kernel: str = ""


class HostKey(msgspec.Struct, frozen=True, kw_only=True, tag="key"):
    """The host's key. `known`: whether the user's known_hosts has it, has another, or has none for this host."""

    line: str
    fingerprint: str
    known: Literal["yes", "other", "no"]


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag="checked"):
    """The worker replies, and its kernels match the local ones."""

    facts: RemoteFacts
    link: Link | None = None


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """The local end of the tunnel listens on this loopback port."""

    port: int


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """Both ends are alive; a round trip took `rtt_s`, the session's process holds `held_bytes`."""

    rtt_s: float
    held_bytes: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The tunnel failed: the kind of problem."""

    state: State
    reason: str | Reason


Message = HostKey | Checked | Opened | Beat | Failed


def line(message: msgspec.Struct) -> bytes:
    """One message as a line."""
    return msgspec.json.encode(message) + b"\n"


class MalformedMessage(Exception):
    """The other side sent something that is not a message of this protocol."""


async def read_answer(readline: Callable[[], Awaitable[bytes]]) -> WorkerReply:
    """The next reply of a worker. Raises: Unreadable; EOFError: it disconnected."""
    raw = await readline()
    if not raw.endswith(b"\n"):
        raise EOFError
    try:
        return msgspec.json.decode(raw, type=learned(WorkerReply))
    except msgspec.MsgspecError as error:
        raise MalformedMessage(str(error)) from error

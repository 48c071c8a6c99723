"""What a worker, the tunnel's process and the server say to each other: one JSON value a line."""

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

from devices.msgspec_lock import learned
from engine.message_catalog.reasons import Reason
from engine.remotes.types import Link, Remote, RemoteFacts, State

# Nothing but an answer with facts is longer than a few hundred bytes.
LONGEST_LINE: Final = 1 << 16
BEAT_S: Final = 1.0
# Silence of the other side that ends a session. A link that carries a load at 10 Mbit/s delays an answer by 3 s.
SILENT_S: Final = 10.0
# The most one measurement of the link carries.
MOST_MEASURED_BYTES: Final = 16 << 20


# ---- to a worker, and back


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`facts`; `ping`; `sink`: num_bytes follow; `source`: num_bytes are wanted; `open` a session."""

    do: Literal["facts", "ping", "sink", "source", "open"]
    num_bytes: int = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's answer. `port` is a session's, on the worker's loopback; `held_bytes` what its process holds."""

    facts: RemoteFacts | None = None
    port: int = 0
    held_bytes: int = 0
    error: str = ""


# ---- to the tunnel's process, and back


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Look at the host's `key`, `check` the worker and the link, or `open` a session. `kernel` is ours."""

    do: Literal["key", "check", "open"]
    remote: Remote
    kernel: str = ""


class HostKey(msgspec.Struct, frozen=True, kw_only=True, tag="key"):
    """The key the host shows. `known`: the user's known_hosts has it, has another, or has none for this host."""

    line: str
    fingerprint: str
    known: Literal["yes", "other", "no"]


class Checked(msgspec.Struct, frozen=True, kw_only=True, tag="checked"):
    """The worker answers, and its kernels are ours."""

    facts: RemoteFacts
    link: Link | None = None


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag="opened"):
    """The near end of the tunnel listens on this port of the loopback."""

    port: int


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """Both ends live; a question took `rtt_s`, the session's process holds `held_bytes`."""

    rtt_s: float
    held_bytes: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The end: what is wrong."""

    state: State
    reason: str | Reason


Message = HostKey | Checked | Opened | Beat | Failed


def line(message: msgspec.Struct) -> bytes:
    """One message on its line."""
    return msgspec.json.encode(message) + b"\n"


class Unreadable(Exception):
    """The other side says what is none of these."""


async def read_answer(readline: Callable[[], Awaitable[bytes]]) -> Answer:
    """The next answer of a worker. Raises: Unreadable; EOFError: it left."""
    raw = await readline()
    if not raw.endswith(b"\n"):
        raise EOFError
    try:
        return msgspec.json.decode(raw, type=learned(Answer))
    except msgspec.MsgspecError as error:
        raise Unreadable(str(error)) from error

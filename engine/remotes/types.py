"""A worker on another computer, its facts, and the speed of its connection."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.message_catalog.reasons import Reason

# Prefix of device ids on other computers.
PREFIX = "remote:"
Use = Literal["unfit", "faster", "pinned"]
State = Literal[
    "unknown", "ok", "unreachable", "refused", "changed_key", "no_worker", "other_kernel", "slow", "lost"
]
Port = Annotated[int, Meta(ge=1, le=65535)]


class Remote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A computer reached by SSH that runs `tessera worker` on its loopback port `worker_port`.

    `host_key` is the one line of its public key that is accepted. `identity` is a private key's file (empty: the
    user's agent and usual keys). `use`: for models that do not fit here, also if it is faster, or only for models
    pinned to it.
    """

    name: str
    host: str
    user: str
    host_key: str
    port: Port = 22
    worker_port: Port = 50052
    identity: str = ""
    use: Use = "unfit"


class RemoteDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a worker, by llama.cpp's name. `gbs`: GB/s read while decoding, measured or expected."""

    name: str
    description: str
    kind: Literal["cpu", "gpu"]
    total_bytes: int
    free_bytes: int
    gbs: float


class RemoteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a worker reports about itself.

    `kernel` names the commit of its llama.cpp; a session's process uses `session_bytes` before any tensor is
    loaded.
    """

    host: str
    version: str
    kernel: str
    devices: tuple[RemoteDevice, ...]
    session_bytes: int = 0


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The encrypted connection to a worker: round trip in seconds, and bytes/s in both directions."""

    rtt_s: float
    up_bytes_s: float
    down_bytes_s: float


class Seen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of the last check of a worker, at `at` (0: never); `detail`: its reason as facts, if known."""

    state: State = "unknown"
    reason: str = ""
    detail: Reason | None = None
    at: float = 0.0
    facts: RemoteFacts | None = None
    link: Link | None = None


class SavedRemotes(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a `RemoteRegistry`."""

    remotes: tuple[Remote, ...] = ()
    seen: dict[str, Seen] = {}

"""/tessera/v1/remotes: remote hosts that hold layers of a model, and their state."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.message_catalog.reasons import Reason
from engine.remotes.types import Port, RemoteDevice, State, Use


class RemoteRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """PUT /tessera/v1/remotes/{name}. `host_key` is the expected fingerprint of the host.

    `identity` is a private key file on the server's computer. If empty, the SSH agent and the user's default keys
    are used.
    """

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    user: Annotated[str, Meta(min_length=1, max_length=64)]
    port: Port = 22
    worker_port: Port = 50052
    identity: Annotated[str, Meta(max_length=1000)] = ""
    use: Use = "unfit"
    host_key: Annotated[str, Meta(max_length=100)] = ""


class RemoteRow(msgspec.Struct, frozen=True, kw_only=True):
    """One worker. `state` is the last probe's result, `at` its time (0: never); rates are in bytes/s."""

    name: str
    host: str
    user: str
    port: int
    worker_port: int
    use: Use
    fingerprint: str
    state: State
    reason: str = ""
    reason_detail: Reason | None = None
    at: float = 0.0
    kernel: str = ""
    rtt_ms: float = 0.0
    up_bytes_s: float = 0.0
    down_bytes_s: float = 0.0
    devices: tuple[RemoteDevice, ...] = ()
    models: tuple[str, ...] = ()


class Remotes(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/remotes. `kernel` is this computer's kernel; the workers must have the same."""

    remotes: tuple[RemoteRow, ...] = ()
    kernel: str = ""

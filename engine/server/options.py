"""What a server is started with."""

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.core.defaults import DEFAULT_HOST, DEFAULT_PORT
from engine.core.paths import Paths, user_paths
from engine.placement.types import NO_OVERRIDES, Overrides

if TYPE_CHECKING:
    from engine.job_kinds.quantize.tasks import TaskSets

# Connections the system may keep for us until they are accepted; each is one try when descriptors run out.
BACKLOG = 64


class ServeOptions(msgspec.Struct, frozen=True):
    """What `tessera serve` can set.

    `context` is the tokens a model is loaded with unless it was trained for less, `overrides` how and where else. A
    `private` server belongs to the process that started it: it tells its address on standard output instead of
    to all of this user's programs. With a certificate only TLS is spoken, and this user's own programs start a
    server of their own beside it. A model is unloaded after `ttl_s` without a request (None: never).
    `containers`, `apps` and `local_pages` are the switches of `Callers`.
    `model` is loaded at the start; of a private server, only if it is there.
    `lora` are (model, adapter file), loaded with that model and used by the requests that name them. `draft` names
    a draft model for all others of its vocabulary. `named_tasks` are tasks that a
    quantization may have to pass before it is kept.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    api_keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    containers: bool = True
    apps: bool = True
    local_pages: bool = False
    context: int | None = None
    model: str | None = None
    overrides: Overrides = NO_OVERRIDES
    private: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    ttl_s: float | None = 3600.0
    max_models: int | None = None
    lora: tuple[tuple[str, str], ...] = ()
    draft: str | None = None
    named_tasks: "TaskSets" = msgspec.field(default_factory=dict)
    paths: Paths = msgspec.field(default_factory=user_paths)


def is_loopback(host: str) -> bool:
    """The address cannot be reached from another machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

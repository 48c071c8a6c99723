"""Options of the server."""

import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.core.defaults import DEFAULT_HOST, DEFAULT_PORT
from engine.core.paths import Paths, user_paths
from engine.placement.types import NO_OVERRIDES, PlacementLimits

if TYPE_CHECKING:
    from engine.job_kinds.quantize.tasks import TaskSets
    from engine.library.models_folder import Keep

# Connections that the system may queue until they are accepted. Each is one attempt when descriptors run out.
BACKLOG = 64


class ServeOptions(msgspec.Struct, frozen=True):
    """Options of `tessera serve`.

    `context` is the default context length (at most the model's training context). `overrides` has the other load
    options. A `private` server belongs to the process that started it: it reports its URL on standard output
    instead of to all programs of the user. With a certificate, the server accepts only TLS, and the user's programs
    start a separate server. A model is unloaded after `ttl_s` without a request (None: never).
    `containers`, `apps` and `local_pages` are the switches of `Callers`.
    `model` is loaded at start; a private server loads it only if it exists. `lora` are pairs of model and adapter
    file: the adapter is loaded with the model and used by requests that name it. `draft` is the default draft model
    for all models with its vocabulary. `canary`: compare rows of answers with the CPU. `named_tasks` are tasks for
    the quality gate of a quantization.
    `keep_models_folder` stores the folder to which the models were moved.
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
    overrides: PlacementLimits = NO_OVERRIDES
    private: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    ttl_s: float | None = 3600.0
    max_models: int | None = None
    lora: tuple[tuple[str, str], ...] = ()
    draft: str | None = None
    canary: bool = True
    keep_models_folder: "Keep | None" = None
    named_tasks: "TaskSets" = msgspec.field(default_factory=dict)
    paths: Paths = msgspec.field(default_factory=user_paths)


def is_loopback(host: str) -> bool:
    """Whether the address cannot be reached from another machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""/tessera/v1/requests: the last requests and the programs that sent them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request for inference, without anything that was said in it. Times in seconds; None: not known."""

    id: str
    time: float
    route: str
    program: str
    address: str
    status: int = 0
    seconds: float = 0.0
    sent_bytes: int = 0
    running: bool = True
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None
    tok_s: float | None = None


class Program(msgspec.Struct, kw_only=True):
    """A program at an address, by the product its User-Agent names; `connected`: it asked lately."""

    name: str
    address: str
    first_seen: float
    last_seen: float
    num_requests: int = 0
    active: int = 0
    connected: bool = False


class RecentActivity(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/requests, newest first."""

    requests: tuple[RequestRecord, ...] = ()
    programs: tuple[Program, ...] = ()


# /tessera/v1/keys: who else may use this server.

Scope = Literal["chat", "manage"]


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/keys."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=2)] = ("chat",)


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was just made. `key` is shown this once."""

    name: str
    key: str
    scopes: tuple[Scope, ...]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key; the key itself is not kept. A connected `program`'s key does not make keys required."""

    name: str
    scopes: tuple[Scope, ...] = ("chat",)
    created_at: float = 0.0
    program: bool = False


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/keys. A `public` server (other machines reach it) requires a key even if none exists.

    required: programs must present a key, made here or given with `--api-key`.
    """

    keys: tuple[Key, ...]
    public: bool = False
    required: bool = False

"""/tessera/v1/requests: the latest requests and the programs that sent them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class RequestRecord(msgspec.Struct, kw_only=True):
    """One inference request, without its content. Times are in seconds; None: unknown."""

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
    """A client program at an address, named by its User-Agent; `connected`: it sent a request recently."""

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


# /tessera/v1/keys: API keys of this server.

Scope = Literal["chat", "manage"]


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """POST /tessera/v1/keys."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1, max_length=2)] = ("chat",)


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was just created. `key` is shown only once."""

    name: str
    key: str
    scopes: tuple[Scope, ...]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key, without the key itself, which is not stored.

    The key of a connected `program` does not make keys required.
    """

    name: str
    scopes: tuple[Scope, ...] = ("chat",)
    created_at: float = 0.0
    program: bool = False


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """GET /tessera/v1/keys. A `public` server (reachable from other machines) requires a key even if none exists.

    `required` is True if programs must send a key that was created here or set with `--api-key`.
    """

    keys: tuple[Key, ...]
    public: bool = False
    required: bool = False

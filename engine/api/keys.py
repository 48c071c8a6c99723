"""/tessera/v1/keys: who else may use this server."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

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

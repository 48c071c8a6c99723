"""Identifies the sender of a request, decides which stored objects it may see, and makes their ids."""

import secrets
from collections.abc import Hashable, Mapping
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

# Owner of requests from this user's own programs, if keys are in use.
LOCAL: Final = "local"
# Set for each HTTP request before any route; tasks that the route starts inherit it. Empty: no keys are in use.
# Only this owner may notice that a prompt is cached.
request_owner: ContextVar[str] = ContextVar("request_owner", default="")
# Whether the request comes from one of the user's own programs; they see what every key stored.
is_own_program: ContextVar[bool] = ContextVar("is_own_program", default=False)


def may_see(owner: str) -> bool:
    """Whether the current request may use what `owner` stored. Without keys everything is shared."""
    current = request_owner.get()
    return owner in ("", current) or not current or is_own_program.get()


class Owned(Protocol):
    """A stored object."""

    @property
    def owner(self) -> str:
        """Who stored it."""
        ...

    @property
    def size_bytes(self) -> int:
        """Memory of its content."""
        ...


def first_to_go(stored: Mapping[K, Owned], least_bytes: int) -> K:
    """Key of the oldest object of the owner that stores most, so that no owner can evict another's objects.

    `least_bytes` is added to each, so that many empty ones count, too. Raises: ValueError: there is none.
    """
    totals: dict[str, int] = {}
    for each in stored.values():
        totals[each.owner] = totals.get(each.owner, 0) + least_bytes + each.size_bytes
    largest = max(totals, key=totals.__getitem__)
    return next(key for key, each in stored.items() if each.owner == largest)


def new_id(prefix: str, separator: str = "-") -> str:
    """A new id such as `chatcmpl-…`."""
    return f"{prefix}{separator}{secrets.token_hex(12)}"

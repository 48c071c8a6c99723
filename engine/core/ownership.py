"""Who sent the current request, and what it may see of what other requests stored."""

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

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


def largest_owner(sizes: Iterable[tuple[str, int]]) -> str:
    """The owner with the largest total, whose oldest objects are evicted first: nobody evicts those of others.

    Raises: ValueError: there is nothing.
    """
    totals: dict[str, int] = {}
    for owner, size in sizes:
        totals[owner] = totals.get(owner, 0) + size
    return max(totals, key=totals.__getitem__)

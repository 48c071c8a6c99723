"""Whose prompts the request at hand belongs to: of a computed prompt nobody but its owner may notice anything."""

from contextvars import ContextVar
from typing import Final

# What this user's own programs send, where keys are in use.
LOCAL: Final = "local"
# Set for each HTTP request before any route; tasks that the route starts inherit it. Empty: no keys are in use.
prefix_owner: ContextVar[str] = ContextVar("prefix_owner", default="")

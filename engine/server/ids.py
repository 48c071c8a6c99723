"""Ids of answers and of what is kept of them."""

import secrets


def new_id(prefix: str, separator: str = "-") -> str:
    """An id such as `chatcmpl-…`."""
    return f"{prefix}{separator}{secrets.token_hex(12)}"

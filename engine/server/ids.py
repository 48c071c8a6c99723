"""Ids of responses and stored objects."""

import secrets


def new_id(prefix: str, separator: str = "-") -> str:
    """A new id such as `chatcmpl-…`."""
    return f"{prefix}{separator}{secrets.token_hex(12)}"

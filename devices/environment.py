"""The environment that child processes get: what programs need, no secrets."""

import os
from collections.abc import Mapping
from typing import Final

# Children read untrusted files or run vendors' tools; tokens and keys stay out of their reach.
_SECRET: Final = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")


def without_secrets(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without variables that sound like secrets, and with `extra`."""
    passed = {k: v for k, v in os.environ.items() if not any(word in k.upper() for word in _SECRET)}
    return passed | dict(extra or {})

"""Environment variables: what children get of them, and where they move the user's folders."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import platformdirs

# Children read untrusted files or run vendors' tools; tokens and keys stay out of their reach.
_SECRET: Final = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")


def user_folder(name: str, override: str) -> Path:
    """`name` below TESSERA_HOME, or in the folder for a user's data; the variable `override` wins over both."""
    if given := os.environ.get(override):
        return Path(given)
    if home := os.environ.get("TESSERA_HOME"):
        return Path(home).expanduser().absolute() / name
    return Path(platformdirs.PlatformDirs("tessera", appauthor=False).user_data_dir) / name


def without_secrets(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without variables that sound like secrets, and with `extra`."""
    passed = {k: v for k, v in os.environ.items() if not any(word in k.upper() for word in _SECRET)}
    return passed | dict(extra or {})

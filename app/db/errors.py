"""What can be wrong with the store of chats: facts only; words are made in the window."""

from pathlib import Path


class StoreError(Exception):
    """Base of every error the store raises on purpose."""


class StoreUnwritable(StoreError):
    """The disk is full, read-only or failing; nothing was changed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be written: {reason}")
        self.path = path
        self.reason = reason


class StoreUnreadable(StoreError):
    """Chats that are in the file cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}")
        self.path = path
        self.reason = reason


class StoreFromNewerVersion(StoreError):
    """The file was written by a newer Tessera; it is left as it is."""

    def __init__(self, path: Path, version: int, newest_version: int) -> None:
        super().__init__(f"{path} has format {version}; this Tessera knows formats up to {newest_version}")
        self.path = path
        self.version = version
        self.newest_version = newest_version


class StoreInUse(StoreError):
    """Another process holds the store."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is in use by another process")
        self.path = path

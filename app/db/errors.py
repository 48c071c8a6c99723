"""Errors of the chat database, with fields only; the window creates the messages."""

from pathlib import Path


class StoreError(Exception):
    """Base class of all errors that the store raises deliberately."""


class StoreUnwritable(StoreError):
    """The disk is full, read-only or failing; nothing was changed."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be written: {reason}")
        self.path = path
        self.reason = reason


class StoreUnreadable(StoreError):
    """The file contains chats that cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}")
        self.path = path
        self.reason = reason


class StoreFromNewerVersion(StoreError):
    """The file was written by a newer Tessera; it stays unchanged."""

    def __init__(self, path: Path, version: int, newest_version: int) -> None:
        super().__init__(f"{path} has format {version}; this Tessera knows formats up to {newest_version}")
        self.path = path
        self.version = version
        self.newest_version = newest_version


class StoreInUse(StoreError):
    """Another process uses the database."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is in use by another process")
        self.path = path

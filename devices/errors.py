"""Errors of the devices package: facts as fields, words at the edge."""

from collections.abc import Mapping


class DevicesError(Exception):
    """Base of every error this package raises on purpose."""

    code = "devices_error"


class BadRecording(DevicesError):
    """A machine recording cannot be read; `reason` says what is wrong with it."""

    code = "bad_recording"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is not a machine recording: {reason}")
        self.path = path
        self.reason = reason


class PackRefused(DevicesError):
    """A kernel pack is not taken; `reason` says why, with the numbers."""

    code = "kernel_pack_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineVersionRefused(DevicesError):
    """A version of llama-cpp-python is not taken or not used; `reason` says why, with the numbers."""

    code = "engine_version_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineVersionRolledBack(EngineVersionRefused):
    """The version in use failed its check; `used_again` is the one before it."""

    def __init__(self, reason: str, used_again: str) -> None:
        super().__init__(f"{reason}. Version {used_again} is used again")
        self.used_again = used_again


class Overdrawn(DevicesError):
    """A reservation would exceed a pool: bytes needed and available, on `pool`."""

    code = "not_enough_memory"

    def __init__(self, pool: str, needed_bytes: int, available_bytes: int, held: Mapping[str, int]) -> None:
        super().__init__(f"{pool}: {needed_bytes} bytes needed, {available_bytes} available")
        self.pool = pool
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.held = dict(held)

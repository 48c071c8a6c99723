"""Base classes of all errors, and this package's errors: facts as fields, sentences in the message catalog."""

from collections.abc import Mapping


class TesseraError(Exception):
    """An expected error without a code of its own. The message says what happened.

    Base class of all of them. `code` is stable, so programs can rely on it. The argument is a sentence, or a fact
    that `str` turns into one.
    """

    code = "tessera_error"

    def __init__(self, what: object = "") -> None:
        super().__init__(what)

    def facts(self) -> dict[str, object]:
        """The error's fields, for logs and JSON."""
        return {k: v for k, v in vars(self).items() if not k.startswith("_")}


class EnvironmentFault(TesseraError):
    """This machine or its state is the reason; the same request may work later or elsewhere."""

    code = "environment"


class InputFault(TesseraError):
    """The request or a file is wrong, so a retry cannot help. `param` names the field."""

    code = "invalid_request"
    param: str | None = None

    def __init__(self, what: object, param: str | None = None) -> None:
        super().__init__(what)
        if param is not None:
            self.param = param


class Cancelled(TesseraError):
    """The caller cancelled the request."""

    code = "cancelled"


class BadRecording(InputFault):
    """A machine recording cannot be read; `reason` says what is wrong with it."""

    code = "bad_recording"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is not a machine recording: {reason}")
        self.path = path
        self.reason = reason


class PackRefused(InputFault):
    """A kernel pack is rejected; `reason` says why, with the numbers."""

    code = "kernel_pack_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FaultRulesRefused(InputFault):
    """A file of known bad combinations is rejected; `reason` says why, with the numbers."""

    code = "fault_rules_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineVersionRefused(InputFault):
    """A version of llama-cpp-python is rejected or not used; `reason` says why, with the numbers."""

    code = "engine_version_refused"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EngineVersionRolledBack(EngineVersionRefused):
    """The version in use failed its check; `used_again` is the previous one."""

    def __init__(self, reason: str, used_again: str) -> None:
        super().__init__(f"{reason}. Version {used_again} is used again")
        self.used_again = used_again


class PoolExceeded(EnvironmentFault):
    """A reservation would exceed a pool: bytes needed and available, on `pool`."""

    code = "not_enough_memory"

    def __init__(self, pool: str, needed_bytes: int, available_bytes: int, held: Mapping[str, int]) -> None:
        super().__init__(f"{pool}: {needed_bytes} bytes needed, {available_bytes} available")
        self.pool = pool
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.held = dict(held)

"""Converts a runner's faults to the engine's errors."""

from typing import Final

from devices.errors import TesseraError
from engine.core.errors import (
    BadModelFile,
    ContextOverflow,
    DeviceCheckFailed,
    FileRefused,
    InputFault,
    SelfCheckFailed,
)
from engine.runner import protocol

_OF_LOADS: Final[dict[str, type[BadModelFile]]] = {
    "file_refused": FileRefused,
    "load_failed": BadModelFile,
    "self_check_failed": SelfCheckFailed,
}


class RequestFailed(TesseraError):
    """The runner refused or lost one request; `code` is the runner's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def fault_to_error(fault: protocol.Fault, path: str) -> TesseraError:
    """Return the engine error for a runner's fault."""
    if fault.code == "context_length_exceeded":
        counts = int(fault.facts["prompt_tokens"] or 0), int(fault.facts["context_tokens"] or 0)
        return ContextOverflow(*counts, at_least=bool(fault.facts.get("at_least")))
    if fault.code == "invalid_request":
        return InputFault(fault.message, fault.param)
    if fault.code == "device_check_failed":
        return DeviceCheckFailed(path, fault.message, fault.facts)
    of_load = _OF_LOADS.get(fault.code)
    return RequestFailed(fault.code, fault.message) if of_load is None else of_load(path, fault.message)

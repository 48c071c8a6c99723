"""Faults of runners: those of embedding requests, and the engine's error for each fault."""

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
        return ContextOverflow(*counts, at_least=bool(fault.facts.get("at_least")), part=fault.param or "")
    if fault.code == "invalid_request":
        return InputFault(fault.message, fault.param)
    if fault.code == "device_check_failed":
        return DeviceCheckFailed(path, fault.message, fault.facts)
    of_load = _OF_LOADS.get(fault.code)
    return RequestFailed(fault.code, fault.message) if of_load is None else of_load(path, fault.message)


def invalid(job_id: int, message: str, param: str) -> protocol.Fault:
    """Return the fault of a request that can never run."""
    return protocol.Fault(id=job_id, code="invalid_request", message=message, param=param)


def embed_fault(message: protocol.Embed, *, ranks: bool) -> protocol.Fault | None:
    """Return why a model cannot run the message; `ranks`: it has a ranking head and gives no embeddings."""
    if message.query is not None and not ranks:
        return invalid(message.id, "This model has no ranking head; load a reranker.", "model")
    if message.query is None and ranks:
        return invalid(message.id, "This model ranks documents and gives no embeddings.", "model")
    return None if message.inputs else invalid(message.id, "There is nothing to embed.", "input")


def input_fault(job_id: int, index: int, tokens: list[int], limit: int, num_tokens: int) -> protocol.Fault | None:
    """Return why an input cannot be embedded; None if it has 1 to `limit` tokens, all below `num_tokens`."""
    param = f"input[{index}]"
    if not tokens:
        return invalid(job_id, f"{param} is empty.", param)
    if min(tokens) < 0 or max(tokens) >= num_tokens:
        return invalid(job_id, f"Token ids must be between 0 and {num_tokens - 1}.", param)
    return too_long(job_id, index, len(tokens), limit) if len(tokens) > limit else None


def too_long(job_id: int, index: int, count: int, limit: int) -> protocol.Fault:
    """Return the fault of an input with `count` tokens for a context of `limit`."""
    facts: dict[str, int | float | str | None] = {"prompt_tokens": count, "context_tokens": limit}
    param = f"input[{index}]"
    return protocol.Fault(id=job_id, code="context_length_exceeded", message="", param=param, facts=facts)

"""Checks a device by its output, and by single operations if the model's noise could hide a fault."""

import sys
from typing import Final

from engine.core.types import DeviceCheck
from engine.runner.llama.native.device_check import (
    UNSTEADY_KLD,
    WRONG_KLD_MEAN,
    DeviceWrong,
    Reference,
    compare,
    is_doubtful,
    is_wrong,
    prompts,
    unsteadiness,
)
from engine.runner.llama.native.llama_api import KernelsMissing
from engine.runner.llama.native.model import LoadedModel, LoadFailed, watched_context
from engine.runner.llama.native.operation_check import OperationCheck, wrong_text
from engine.runner.llama.native.vocabulary import LlamaVocabulary

# Additional time of a first load for this check, most of it for reading weights back from the device.
OPERATIONS_S: Final = 3.0
CELLS: Final = 256


def checked(
    expected: Reference,
    loaded: LoadedModel,
    vocabulary: LlamaVocabulary,
    floor: float = WRONG_KLD_MEAN,
    *,
    whole: bool = False,
) -> DeviceCheck:
    """Return the comparison of a correct device with the CPU. `whole`: skip the check of single operations.

    Raises: DeviceWrong. NotComparable: the reference is another model's.
    """
    name = ", ".join(loaded.settings.devices)
    try:
        check = compare(expected, loaded, vocabulary)
        unsteady = unsteadiness(loaded, prompts(loaded, vocabulary)[0])
    except ValueError as error:
        raise DeviceWrong(f"on {name}, {error}", None) from error
    if is_wrong(check, expected, floor):
        raise DeviceWrong(f"{name} computes something else than the CPU ({check.kld_mean:.2g} nats)", check)
    if not unsteady <= UNSTEADY_KLD:
        raise DeviceWrong(f"{name} gives other numbers for the same tokens ({unsteady:.2g} nats apart)", check)
    if not whole and is_doubtful(check, floor) and (wrong := wrong_operations(loaded, vocabulary)):
        raise DeviceWrong(f"{name} computes something else than the CPU: {wrong}", check)
    return check


def wrong_operations(loaded: LoadedModel, vocabulary: LlamaVocabulary, seconds: float = OPERATIONS_S) -> str:
    """Return the wrong operations as text; empty if there are none or none could be compared."""
    try:
        check = OperationCheck(loaded.api)
        try:
            beside = watched_context(loaded, min(CELLS, loaded.n_ctx), check.callback)
            try:
                return wrong_text(check.compare(beside, prompts(loaded, vocabulary)[0], seconds))
            finally:
                loaded.api.llama_free(beside.context)
        finally:
            check.close()
    except (KernelsMissing, LoadFailed, ValueError, AttributeError) as error:
        sys.stderr.write(f"the device's operations were not compared: {error}\n")
        return ""

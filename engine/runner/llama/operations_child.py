"""Child process: finds a device's operations that differ from the CPU's, for a model with a wrong output.

Usage: python -m engine.runner.llama.operations_child SETTINGS_JSON. Prints one JSON line. A faulty device may also
crash or hang this process, so the parent has a timeout.
"""

import sys
from typing import Any

import msgspec

from devices.child_command import write_answer
from devices.msgspec_lock import learned
from engine.runner.llama.native import model as llama_model
from engine.runner.llama.native.device_check import prompts
from engine.runner.llama.native.llama_api import KernelsMissing, start_backends
from engine.runner.llama.native.operation_check import Operation, OperationCheck, wrong_text
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.protocol import LoadSettings

CONTEXT = 256


def compare(api: Any, settings: LoadSettings) -> list[Operation]:
    """Compare the nodes of a prompt and single tokens. Raises: LoadFailed, KernelsMissing, ValueError."""
    at = msgspec.structs.replace(
        settings, n_ctx=min(settings.n_ctx, CONTEXT), kv_cells=0, n_parallel=1, lora=(), mtp=False, max_rollback=0,
        draft_path=None, mmproj_path=None, reference_path=None,
    )  # fmt: skip
    check = OperationCheck(api)
    loaded = llama_model.load(api, at, lambda _fraction: True, on_node=check.callback)
    try:
        return check.compare(loaded, prompts(loaded, LlamaVocabulary(api, loaded.vocab))[0])
    finally:
        loaded.close()
        check.close()


def main() -> int:
    """Print the results."""
    try:
        settings = msgspec.json.decode(sys.argv[1].encode(), type=learned(LoadSettings))
        operations = compare(start_backends(settings.devices, variables=settings.variables), settings)
        wrong = [o for o in operations if o.wrong]
        answer = {
            "wrong": wrong_text(operations),
            "kinds": sorted({o.kind for o in wrong}),
            "compared": sum(o.count for o in operations),
            "operations": [{**msgspec.to_builtins(o), "error": repr(o.error)} for o in operations],
        }
    except (KernelsMissing, llama_model.LoadFailed, msgspec.DecodeError, ValueError, AttributeError) as error:
        answer = {"error": str(error)}
    write_answer(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())

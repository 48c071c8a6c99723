"""Child process: checks another version of llama-cpp-python for consistency and against the reference.

Usage: python -m engine.runner.llama.version_check SETTINGS_JSON REFERENCE, under TESSERA_ENGINE_VERSION. Prints one
JSON line: `{"error": …}`, or a DeviceCheck.
"""

import ctypes
import sys
from pathlib import Path
from typing import Any

import msgspec

from devices.child_command import write_answer
from devices.msgspec_lock import learned
from engine.runner.llama.native import model as llama_model
from engine.runner.llama.native.device_check import NotComparable, compare, is_wrong, read_reference
from engine.runner.llama.native.llama_api import KernelsMissing, load_api, start_backends
from engine.runner.llama.native.struct_layout import problems
from engine.runner.llama.native.vocabulary import LlamaVocabulary
from engine.runner.llama.reference_child import reference_settings
from engine.runner.protocol import LoadSettings


def check(settings: LoadSettings, reference: Path) -> dict[str, Any]:
    """Return the comparison or an error. Structs are checked first: with wrong ones any call may write anywhere."""
    mismatches = problems(load_api())
    if mismatches:
        return {"error": f"its structs are not those it is called with: {'; '.join(mismatches)}"}
    expected = read_reference(reference)
    if expected is None:
        return {"error": "the shipped version's reference cannot be read"}
    loaded = llama_model.load(start_backends(), reference_settings(settings), lambda _fraction: True)
    try:
        compared = compare(expected, loaded, LlamaVocabulary(loaded.api, loaded.vocab))
    finally:
        loaded.close()
    if is_wrong(compared, expected):
        numbers = f"KL divergence {compared.kld_mean:.2g} in mean, {compared.kld_max:.2g} at worst"
        changed = f"{compared.top_changed_frac:.0%} of sure tokens changed"
        return {"error": f"it computes something else than the shipped version: {numbers}, {changed}"}
    answer: dict[str, Any] = msgspec.to_builtins(compared)
    return answer


def main() -> int:
    """Print the result."""
    try:
        settings = msgspec.json.decode(sys.argv[1].encode(), type=learned(LoadSettings))
        answer = check(settings, Path(sys.argv[2]))
    except (KernelsMissing, llama_model.LoadFailed, msgspec.DecodeError, NotComparable) as error:
        answer = {"error": str(error)}
    except (ValueError, AttributeError, TypeError, OSError, ctypes.ArgumentError) as error:
        answer = {"error": f"a call into it failed: {type(error).__name__}: {error}"}
    write_answer(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())

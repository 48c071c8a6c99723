"""Why a runner ended, from what the system tells."""

import re
import signal
from collections.abc import Sequence
from typing import Final

from engine.message_catalog.reasons import Reason, because

# Ends that a process brought about itself: a failed check or an exception, and a crash.
_STOPPED: Final = frozenset({-getattr(signal, "SIGABRT", 6), 0xC0000409})
_CRASHED: Final = frozenset({-getattr(signal, "SIGSEGV", 11), -getattr(signal, "SIGFPE", 8), 0xC0000005})
# What llama.cpp says when a check fails, and what the C++ library says of an exception that nobody catches.
_CHECK: Final = re.compile(r"([\w.-]+\.(?:c|cpp|cu|h|hpp|m|mm):\d+: .+)$")
_EXCEPTION: Final = re.compile(r"^\s*what\(\):\s*(.+)$")
_PART: Final = re.compile(r"^tessera: loading (.+)$")
# Memory and devices: another size of the context or another device may help, so that the file is not to blame.
_NOT_THE_FILE: Final = re.compile(
    r"alloc|memory|device|backend|CUDA|Vulkan|Metal|HIP|SYCL|ggml-(?!quants)", re.IGNORECASE
)
_LAST_LINES: Final = 12


def exit_reason(code: int, *, stopping: bool, last_line: str = "") -> Reason:
    """What an exit code of a runner means; `last_line` is the last it wrote to stderr."""
    if stopping or code == 0:
        return because("model_unloaded")
    meanings = {
        -getattr(signal, "SIGABRT", 6): "own_check",
        -getattr(signal, "SIGSEGV", 11): "segmentation_fault",
        -getattr(signal, "SIGILL", 4): "unknown_instruction",
        -getattr(signal, "SIGKILL", 9): "killed",
        -getattr(signal, "SIGBUS", 7): "file_shrank",
        3: "not_loadable",
        0xC0000005: "access_violation",
        0xC0000409: "own_check",
    }
    known = meanings.get(code) or ("" if last_line else "last_words_unknown")
    return because("process_ended", cause=because(known) if known else last_line, code=code)


def ended_itself(code: int | None) -> bool:
    """The process failed a check of its own or crashed; nobody else ended it."""
    return code in _STOPPED or code in _CRASHED


def file_to_blame(code: int, lines: Sequence[str], *, weights_read: bool) -> Reason | None:
    """Why the file that was being loaded ends every runner; None where something else may be at fault.

    `lines` are the last of stderr. A crash after the weights were read may be one of a kernel.
    """
    said = [match[1] for line in lines[-_LAST_LINES:] if (match := _CHECK.search(line) or _EXCEPTION.match(line))]
    if not (code in _STOPPED and said) and (weights_read or not ended_itself(code)):
        return None
    if any(map(_NOT_THE_FILE.search, said)):
        return None
    part = next((match[1] for line in reversed(lines) if (match := _PART.match(line))), "")
    cause = said[-1] if said else exit_reason(code, stopping=False).values["cause"]
    kind = "part_ends_runner" if part else "file_ends_runner"
    return because(kind, cause=cause, code=code, **({"part": part} if part else {}))

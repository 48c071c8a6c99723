"""Determines why a runner exited, from its exit code and stderr."""

import re
import signal
from collections.abc import Sequence
from typing import Final

from engine.message_catalog.reasons import Reason, because

# Exit codes that a process causes itself: a failed check or an exception, and a crash.
_STOPPED: Final = frozenset({-getattr(signal, "SIGABRT", 6), 0xC0000409})
_CRASHED: Final = frozenset({-getattr(signal, "SIGSEGV", 11), -getattr(signal, "SIGFPE", 8), 0xC0000005})
# llama.cpp's message for a failed check, and the C++ library's for an uncaught exception.
_CHECK: Final = re.compile(r"([\w.-]+\.(?:c|cpp|cu|h|hpp|m|mm):\d+: .+)$")
_EXCEPTION: Final = re.compile(r"^\s*what\(\):\s*(.+)$")
_PART: Final = re.compile(r"^tessera: loading (.+)$")
# Errors about memory or devices: another context size or another device may help, so the file is not the cause.
_NOT_THE_FILE: Final = re.compile(
    r"alloc|memory|device|backend|CUDA|Vulkan|Metal|HIP|SYCL|ggml-(?!quants)", re.IGNORECASE
)
_LAST_LINES: Final = 12


def exit_reason(code: int, *, stopping: bool, last_line: str = "") -> Reason:
    """Return the meaning of a runner's exit code; `last_line` is its last line on stderr."""
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
    meaning = meanings.get(code) or ("" if last_line else "last_words_unknown")
    return because("process_ended", cause=because(meaning) if meaning else last_line, code=code)


def ended_itself(code: int | None) -> bool:
    """Whether the process failed one of its own checks or crashed, rather than being killed."""
    return code in _STOPPED or code in _CRASHED


def file_to_blame(code: int, lines: Sequence[str], *, weights_read: bool) -> Reason | None:
    """Return why the file being loaded ends every runner; None if there may be another cause.

    `lines` are the last of stderr. A crash after the weights were read may be the fault of a kernel.
    """
    texts = [match[1] for line in lines[-_LAST_LINES:] if (match := _CHECK.search(line) or _EXCEPTION.match(line))]
    if not (code in _STOPPED and texts) and (weights_read or not ended_itself(code)):
        return None
    if any(map(_NOT_THE_FILE.search, texts)):
        return None
    part = next((match[1] for line in reversed(lines) if (match := _PART.match(line))), "")
    cause = texts[-1] if texts else exit_reason(code, stopping=False).values["cause"]
    kind = "part_ends_runner" if part else "file_ends_runner"
    return because(kind, cause=cause, code=code, **({"part": part} if part else {}))

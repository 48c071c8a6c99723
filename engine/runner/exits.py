"""Why a runner ended, from what the system tells."""

import signal

from engine.reasons import Reason, because


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

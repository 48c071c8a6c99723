"""Why a runner ended, from what the system tells."""

import signal


def exit_reason(code: int, *, stopping: bool, last_line: str = "") -> str:
    """What an exit code of a runner means, in words; `last_line` is the last it wrote to stderr."""
    if stopping or code == 0:
        return "the model was unloaded"
    meanings = {
        -getattr(signal, "SIGABRT", 6): "llama.cpp stopped itself on an internal check",
        -getattr(signal, "SIGSEGV", 11): "a native crash (segmentation fault)",
        -getattr(signal, "SIGILL", 4): "an instruction this processor does not have",
        -getattr(signal, "SIGKILL", 9): "the process was killed, by a user or for lack of memory",
        -getattr(signal, "SIGBUS", 7): "the model file shrank or its disk failed while it was being read",
        3: "the model could not be loaded",
        0xC0000005: "a native crash (access violation)",
        0xC0000409: "llama.cpp stopped itself on an internal check",
    }
    cause = meanings.get(code) or last_line or "its last words are not known"
    return f"the model's process ended: {cause} (exit code {code})"

"""llama.cpp's log: written to stderr; the newest errors are stored to explain a failed load."""

import os
import re
import sys
from collections import deque
from typing import Any, Final

_ERROR: Final = 4
_STDERR: Final = 2
# Function names before a message, and messages that only repeat that it failed.
_WHERE: Final = re.compile(r"^(?:\w+: |error loading model: )+")
_NO_REASON: Final = re.compile(r"^failed to (?:load model|read header)$|^Failed to load CLIP model from [^:]*$")
# Words in errors that may disappear with another device or context size.
_NOT_THE_FILE: Final = re.compile(
    r"alloc|memory|buffer|device|backend|CUDA|Vulkan|Metal|HIP|SYCL|mmap|mlock", re.IGNORECASE
)
_MAX_REASONS: Final = 3

_errors: deque[str] = deque(maxlen=20)
_listening: list[Any] = []  # callbacks of llama.cpp must not be freed


def listen(api: Any) -> None:
    """Start receiving llama.cpp's log."""
    if _listening:
        return

    def hear(level: int, text: bytes, _: object) -> None:
        os.write(_STDERR, text)
        remember(level, text)

    _listening.append(api.llama_log_callback(hear))
    api.llama_log_set(_listening[0], None)


def remember(level: int, text: bytes) -> None:
    """Store a line if it is an error."""
    if level == _ERROR:
        _errors.append(text.decode("utf-8", "replace").strip())


def forget() -> None:
    """Delete stored errors before an unrelated operation."""
    _errors.clear()


def begin(part: str, path: str) -> None:
    """Log the start of a part of a load; if it ends this process, the server reads here which part it was."""
    forget()
    sys.stderr.write(f"tessera: loading {part} {path}\n")
    sys.stderr.flush()


def explained(what: str) -> str:
    """Return a failure message with the reasons that llama.cpp has logged."""
    messages = [reason for line in _errors if (reason := _WHERE.sub("", line))]
    reasons = list(dict.fromkeys(reason for reason in messages if not _NO_REASON.search(reason))) or messages[-1:]
    return f"{what}: {'; '.join(reasons[-_MAX_REASONS:])}" if reasons else f"{what}, and gave no reason"


def blames_file() -> bool:
    """Whether the logged errors are about the file, so that another device or other settings would not help."""
    return bool(_errors) and not any(_NOT_THE_FILE.search(line) for line in _errors)

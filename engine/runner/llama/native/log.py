"""llama.cpp's log: passed on to stderr as it comes, its newest errors remembered to explain a failed load."""

import os
import re
import sys
from collections import deque
from typing import Any, Final

_ERROR: Final = 4
_STDERR: Final = 2
# Names of functions before a message, and what only repeats that it failed.
_WHERE: Final = re.compile(r"^(?:\w+: |error loading model: )+")
_NO_REASON: Final = re.compile(r"^failed to (?:load model|read header)$|^Failed to load CLIP model from [^:]*$")
# Words of a refusal that another device or another size of the context may take away.
_NOT_THE_FILE: Final = re.compile(
    r"alloc|memory|buffer|device|backend|CUDA|Vulkan|Metal|HIP|SYCL|mmap|mlock", re.IGNORECASE
)
_MAX_REASONS: Final = 3

_errors: deque[str] = deque(maxlen=20)
_listening: list[Any] = []  # what llama.cpp calls must not be freed


def listen(api: Any) -> None:
    """Hear llama.cpp's log from now on."""
    if _listening:
        return

    def hear(level: int, text: bytes, _: object) -> None:
        os.write(_STDERR, text)
        remember(level, text)

    _listening.append(api.llama_log_callback(hear))
    api.llama_log_set(_listening[0], None)


def remember(level: int, text: bytes) -> None:
    """Take note of a line, if it is an error."""
    if level == _ERROR:
        _errors.append(text.decode("utf-8", "replace").strip())


def forget() -> None:
    """What comes now belongs to something else."""
    _errors.clear()


def begin(part: str, path: str) -> None:
    """A part of a load begins; if it ends this process, the server reads here what it was."""
    forget()
    sys.stderr.write(f"tessera: loading {part} {path}\n")
    sys.stderr.flush()


def explained(what: str) -> str:
    """A failure with the reasons that llama.cpp has logged."""
    said = [reason for line in _errors if (reason := _WHERE.sub("", line))]
    reasons = list(dict.fromkeys(reason for reason in said if not _NO_REASON.search(reason))) or said[-1:]
    return f"{what}: {'; '.join(reasons[-_MAX_REASONS:])}" if reasons else f"{what}, and gave no reason"


def blames_file() -> bool:
    """What was logged is about the file, so that no other device and no other settings would help."""
    return bool(_errors) and not any(_NOT_THE_FILE.search(line) for line in _errors)

"""User-readable error messages, and the exit code of each error family."""

import errno
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeGuard

from app.client import ApiError, ServerUnreachable
from app.format import size
from devices.errors import Cancelled, EnvironmentFault, InputFault, TesseraError
from engine.core.errors import ModelNotFound, PartMissing, exhausted
from engine.library.errors import HashMismatch, NotEnoughDisk
from quantize import errors as quantizer

EXIT_INPUT: Final = 3
EXIT_ENVIRONMENT: Final = 4
EXIT_INTERRUPTED: Final = 130

_CLIENT_ERRORS: Final = range(400, 500)
_CODES: dict[type[BaseException], int] = {
    InputFault: EXIT_INPUT,
    EnvironmentFault: EXIT_ENVIRONMENT,
    Cancelled: EXIT_INTERRUPTED,
    TesseraError: EXIT_ENVIRONMENT,
    ServerUnreachable: EXIT_ENVIRONMENT,
    KeyboardInterrupt: EXIT_INTERRUPTED,
}


def _not_enough_disk(error: Any) -> str:
    short = size(error.needed_bytes - error.free_bytes)
    return (
        f"{size(error.needed_bytes)} are needed in {error.path}, {size(error.free_bytes)} are free. "
        f"Free {short}, or move the library with TESSERA_HOME."
    )


def _hash_mismatch(error: Any) -> str:
    return (
        f"{error.file} is not what the hub promised: sha256 {error.actual[:16]}..., not {error.expected[:16]}... "
        f"It was moved to {error.quarantine} and is not used. Download it again; if that fails, tell its owner."
    )


def _budget_too_small(error: Any) -> str:
    if error.n_ctx:
        return (
            f"{size(error.limit_bytes)} of memory are free or allowed; this model needs "
            f"{size(error.smallest_bytes)} with a context of {error.n_ctx:,} tokens. Give a shorter context "
            "(--ctx), or choose a smaller model."
        )
    why = f", {error.rows}" if error.rows else ""
    return (
        f"{error.limit_bytes:,} bytes are too few: the smallest possible file has {error.smallest_bytes:,} "
        f"bytes{why}. Allow at least that, or choose a smaller model."
    )


def _unsupported_model(error: Any) -> str:
    supported = f" Supported: {', '.join(error.supported)}." if error.supported else ""
    return f"{error.path}: {error.reason}.{supported} A GGUF file of the model may help: see docs/convert.md."


def _converter_needed(error: Any) -> str:
    return (
        f"{error.path}: {error.reason}. `tessera models convert {shlex.quote(str(error.path))}` offers to get it."
    )


_WORDS: Final[dict[type[BaseException], Callable[[Any], str]]] = {
    NotEnoughDisk: _not_enough_disk,
    quantizer.DiskFull: _not_enough_disk,
    quantizer.BudgetTooSmall: _budget_too_small,
    quantizer.UnsupportedModel: _unsupported_model,
    quantizer.ConverterNeeded: _converter_needed,
    HashMismatch: _hash_mismatch,
}


# What the system refuses where Python knows no file's name: output that is redirected to a full disk.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def _is_of_a_file(error: BaseException) -> TypeGuard[OSError]:
    """Whether the system refused a file or folder: no right, no space, a folder in the place of a file."""
    return isinstance(error, OSError) and error.filename is not None and error.strerror is not None


def _lacks_room(error: BaseException) -> TypeGuard[OSError]:
    """Whether a disk is full, most often the one that the output is redirected to."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def _file_in_place_of_a_model(error: BaseException) -> str | None:
    """The argument of this command that names a GGUF file, if there is no model of that name."""
    if getattr(error, "code", None) != ModelNotFound.code:
        return None
    return next((word for word in sys.argv[1:] if word.endswith(".gguf") and Path(word).is_file()), None)


def exit_code(error: BaseException) -> int | None:
    """Exit code for the family of a known error; None for a bug."""
    if isinstance(error, ApiError):
        return EXIT_INPUT if error.status in _CLIENT_ERRORS else EXIT_ENVIRONMENT
    if isinstance(exhausted(error), PartMissing) or _is_of_a_file(error) or _lacks_room(error):
        return EXIT_ENVIRONMENT
    for cls in type(error).__mro__:
        if cls in _CODES:
            return _CODES[cls]
    return None


def describe(error: BaseException) -> str:
    """Describe the error in one paragraph."""
    if isinstance(missing := exhausted(error), PartMissing):
        return str(missing)
    if _is_of_a_file(error):
        return f"{error.filename}: {error.strerror}."
    if _lacks_room(error):
        return f"The output cannot be written: {error.strerror}."
    words = _WORDS.get(type(error))
    text = words(error) if words else str(error) or type(error).__name__
    file = _file_in_place_of_a_model(error)
    return f"{text} {file} is a file; `tessera models link {shlex.quote(file)}` makes it a model." if file else text

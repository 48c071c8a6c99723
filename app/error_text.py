"""User-readable error messages, and the exit code of each error family."""

from collections.abc import Callable
from typing import Any, Final

from app.client import ApiError, ServerUnreachable
from app.format import size
from devices.errors import Cancelled, EnvironmentFault, InputFault, TesseraError
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
        f"It was put aside as {error.quarantine} and is not used. Fetch it again; if that fails, tell its owner."
    )


def _budget_too_small(error: Any) -> str:
    return (
        f"{error.limit_bytes:,} bytes are too few: the smallest possible mix takes {error.smallest_bytes:,} bytes. "
        f"Ask for at least that, or choose a smaller model."
    )


def _unsupported_model(error: Any) -> str:
    supported = f" Supported: {', '.join(error.supported)}." if error.supported else ""
    return f"{error.path}: {error.reason}.{supported} A GGUF file of the model may help: see docs/convert.md."


def _converter_needed(error: Any) -> str:
    return f"{error.path}: {error.reason}. `tessera models convert {error.path}` offers to get it."


_WORDS: Final[dict[type[BaseException], Callable[[Any], str]]] = {
    NotEnoughDisk: _not_enough_disk,
    quantizer.DiskFull: _not_enough_disk,
    quantizer.BudgetTooSmall: _budget_too_small,
    quantizer.UnsupportedModel: _unsupported_model,
    quantizer.ConverterNeeded: _converter_needed,
    HashMismatch: _hash_mismatch,
}


def exit_code(error: BaseException) -> int | None:
    """Exit code for the family of a known error; None for a bug."""
    if isinstance(error, ApiError):
        return EXIT_INPUT if error.status in _CLIENT_ERRORS else EXIT_ENVIRONMENT
    if _missing_part(error) is not None:
        return EXIT_ENVIRONMENT
    for cls in type(error).__mro__:
        if cls in _CODES:
            return _CODES[cls]
    return None


# Part of the program (an extra in pyproject.toml): the modules that only it needs.
PARTS: Final = {
    "code": ("mcp", "tree_sitter"),
    "documents": ("lxml", "markdown_it", "openpyxl", "pathspec", "pypdfium2", "docx", "watchfiles"),
    "onnx": ("onnx", "onnxruntime", "onnxruntime_genai"),
    "quantize": ("gguf", "tokenizers"),
    "remote": ("asyncssh", "cryptography", "keyring", "packaging", "segno"),
    "window": ("PySide6", "pyqtgraph", "ziamath", "pygments"),
}


def _missing_part(error: BaseException) -> str | None:
    """The part of the program whose packages are not installed here, if that is the error."""
    top = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return next((part for part, modules in PARTS.items() if top in modules), None)


def describe(error: BaseException) -> str:
    """Describe the error in one paragraph."""
    if part := _missing_part(error):
        return (
            f"this needs the part {part!r} of Tessera, which is not installed here. Install it with: "
            f"pip install 'tessera[{part}]' (python3 start.py installs all parts)"
        )
    words = _WORDS.get(type(error))
    return words(error) if words else str(error) or type(error).__name__

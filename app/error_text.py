"""Errors as a person reads them, and the exit code of each family."""

from typing import Final

from app.client import ApiError, ServerUnreachable
from engine.errors import Cancelled, EngineError, EnvironmentFault, InputFault

EXIT_INPUT: Final = 3
EXIT_ENVIRONMENT: Final = 4
EXIT_INTERRUPTED: Final = 130

_CLIENT_ERRORS: Final = range(400, 500)
_CODES: dict[type[BaseException], int] = {
    InputFault: EXIT_INPUT,
    EnvironmentFault: EXIT_ENVIRONMENT,
    Cancelled: EXIT_INTERRUPTED,
    EngineError: EXIT_ENVIRONMENT,
    ServerUnreachable: EXIT_ENVIRONMENT,
    KeyboardInterrupt: EXIT_INTERRUPTED,
}


def exit_code(error: BaseException) -> int | None:
    """The exit code of a known error's family; None for a bug."""
    if isinstance(error, ApiError):
        return EXIT_INPUT if error.status in _CLIENT_ERRORS else EXIT_ENVIRONMENT
    for cls in type(error).__mro__:
        if cls in _CODES:
            return _CODES[cls]
    return None


def describe(error: BaseException) -> str:
    """What happened, in one paragraph."""
    if isinstance(error, ApiError) and error.facts.get("options"):
        return f"{error.message} Options: {'; '.join(error.facts['options'])}"
    return str(error) or type(error).__name__

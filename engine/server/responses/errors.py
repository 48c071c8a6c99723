"""The error of a response that went wrong; refusals and errors before it have OpenAI's shape."""

from devices.errors import TesseraError
from engine.core.errors import ContextOverflow, InputFault


def failure(error: Exception) -> dict[str, str]:
    """The `error` of a failed response."""
    known = isinstance(error, TesseraError)
    message = str(error) if known else "An internal error; the server's log has the details."
    return {"code": _code(error), "message": message}


def _code(error: Exception) -> str:
    if isinstance(error, ContextOverflow):
        return "context_length_exceeded"
    if isinstance(error, InputFault):
        return "invalid_prompt" if error.code == "invalid_request" else error.code
    return "server_error"

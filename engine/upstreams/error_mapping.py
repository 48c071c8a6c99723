"""Maps an upstream's error responses to Tessera's errors."""

import re
from typing import Final

import msgspec

from devices.errors import TesseraError
from engine.core.errors import ContextOverflow, InputFault, ModelNotFound
from engine.message_catalog.reasons import because
from engine.upstreams.errors import UpstreamBusy, UpstreamFault, UpstreamRefusesKey
from engine.upstreams.stream import error_text

# vLLM: "maximum context length is 4096 tokens. However, you requested 5005 tokens (4993 in the messages, …)";
# SGLang: "The input (5000 tokens) is longer than the model's context length (4096 tokens)". Others have fields.
_LONG: Final = (
    re.compile(r"context length is (?P<has>\d+) tokens[^0-9]*(?P<asked>\d+)", re.DOTALL),
    re.compile(r"(?P<asked>\d+) tokens\) is longer than the model's context length \((?P<has>\d+)"),
)
_FIELDS: Final = (("n_prompt_tokens", "n_ctx"), ("prompt_tokens", "context_tokens"))
_REFUSED: Final = frozenset({401, 403})
_ABSENT: Final = 404
_BUSY: Final = 429
_CLIENT: Final = range(400, 500)


def refusal(name: str, status: int, body: bytes, model: str = "") -> TesseraError:
    """The error for a response with this status."""
    words, fields = _parse_error(body)
    if status in _REFUSED:
        return UpstreamRefusesKey(name, f"{status}: {words}")
    if status == _ABSENT and (not words or "model" in words.lower()):
        return ModelNotFound(f"{name}/{model}")
    if status == _BUSY:
        return UpstreamBusy(name, because("upstream_busy", upstream=name, said=words), status)
    if status not in _CLIENT:
        return UpstreamFault(name, because("upstream_failed", upstream=name, status=status, said=words), status)
    param = fields.get("param")
    refused = because("upstream_refuses", upstream=name, status=status, said=words)
    return _overflow(words, fields) or InputFault(refused, param if isinstance(param, str) else None)


def _overflow(words: str, fields: dict[str, object]) -> ContextOverflow | None:
    """The error for a prompt that is too long: clients shorten it if they get this in their own protocol."""
    for prompt_field, has in _FIELDS:
        prompt, context = fields.get(prompt_field), fields.get(has)
        if isinstance(prompt, int) and isinstance(context, int):
            return ContextOverflow(prompt, context)
    match = next((m for m in (form.search(words) for form in _LONG) if m), None)
    return ContextOverflow(int(match["asked"]), int(match["has"])) if match else None


def _parse_error(body: bytes) -> tuple[str, dict[str, object]]:
    """The message of a body, and the fields of its error."""
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return body[:300].decode("utf-8", "replace").strip(), {}
    error = value.get("error", value) if isinstance(value, dict) else value
    return error_text(error), error if isinstance(error, dict) else {}

"""Ask the server to fill a gap; leaving the stream cancels the work."""

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from app.client import Client
from app.code.completion.policy import CompletionQuery, offered
from engine.api.chat import InfillEvent


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A completion and what it took; `cached_tokens` of `prompt_tokens` came from the prefix cache."""

    text: str
    first_token_s: float | None
    prompt_tokens: int
    cached_tokens: int


def infill_body(request: CompletionQuery, model: str | None = None) -> dict[str, Any]:
    """The /infill request for a completion."""
    gap = request.gap
    body: dict[str, Any] = {
        "input_prefix": gap.prefix,
        "input_suffix": gap.suffix,
        "input_extra": [{"filename": file.path, "text": file.text} for file in gap.extra],
        "filename": gap.path,
        "n_predict": request.max_tokens,
        "stop": list(request.stop),
        "temperature": 0.0,
        "stream": True,
    }
    return body if model is None else {**body, "model": model}


def stream(client: Client, request: CompletionQuery, model: str | None = None) -> Generator[InfillEvent]:
    """The server's events; closing the iterator closes the connection, which ends the work within a ubatch."""
    return client.stream("/infill", InfillEvent, infill_body(request, model))


def suggest(
    client: Client, request: CompletionQuery, model: str | None = None, *, first_only: bool = False
) -> Suggestion:
    """Wait for a completion; `first_only` leaves at the first token, as a further keystroke would.

    Raises: ApiError, ServerUnreachable.
    """
    begun = time.perf_counter()
    text, first_s, prompt, cached = "", None, 0, 0
    with closing(stream(client, request, model)) as events:
        for event in events:
            prompt = prompt if event.tokens_evaluated is None else event.tokens_evaluated
            cached = cached if event.tokens_cached is None else event.tokens_cached
            if first_s is None and event.content:
                first_s = time.perf_counter() - begun
            text += event.content
            if event.stop or (first_only and first_s is not None):
                break
    return Suggestion(
        text=offered(text, request), first_token_s=first_s, prompt_tokens=prompt, cached_tokens=cached
    )

"""Answers in the words of llama-server's own protocol: what a generation was, at its end."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final, cast

import msgspec

from engine.loaded_model import LoadedModel
from engine.types import Delta, Done, Event, Started

_STOP_TYPES: Final = {"length": "limit", "stop": "eos", "cancelled": "limit", "error": "none"}


async def timed(events: AsyncIterator[Event], limit_ms: float | None) -> AsyncGenerator[Event, None]:
    """The events; with a limit none of the text that comes later than that after the first."""
    begun = 0.0
    # Leaving early must end the generation now, not when the collector gets to it.
    async with aclosing(cast("AsyncGenerator[Event, None]", events)) as source:
        async for event in source:
            if isinstance(event, Delta):
                begun = begun or time.monotonic()
                if limit_ms and (time.monotonic() - begun) * 1000 > limit_ms:
                    return
            yield event


def ended(model: LoadedModel, started: Started, done: Done | None, *, truncated: bool) -> dict[str, Any]:
    """What llama-server tells at the end, in its own words and milliseconds."""
    generated = done.usage.completion_tokens if done else 0
    times = done.timings if done else None
    decode_ms = round(times.decode_s * 1000, 3) if times else 0.0
    prompt_ms = round(times.prefill_s * 1000, 3) if times else 0.0
    gaps = max(generated - 1, 0)
    fresh = started.prompt_tokens - started.cached_tokens
    return {
        "stop": True,
        "model": model.id,
        "tokens_predicted": generated,
        "tokens_evaluated": started.prompt_tokens,
        "tokens_cached": started.cached_tokens,
        "truncated": truncated,
        "stop_type": "word" if done and done.stop else _STOP_TYPES[done.finish_reason] if done else "limit",
        "stopping_word": (done.stop if done else None) or "",
        "timings": {
            "cache_n": started.cached_tokens,
            "prompt_n": fresh,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / fresh if fresh else 0.0,
            "prompt_per_second": fresh / prompt_ms * 1000 if prompt_ms else 0.0,
            "predicted_n": generated,
            "predicted_ms": decode_ms,
            "predicted_per_token_ms": decode_ms / gaps if gaps else 0.0,
            "predicted_per_second": gaps / decode_ms * 1000 if decode_ms else 0.0,
        },
    }


def chosen_fields(answer: dict[str, Any], names: list[str] | None) -> dict[str, Any]:
    """Only the fields asked for; "a/b" names b inside a and comes back under that name."""
    if not names:
        return answer
    chosen = {}
    for name in names:
        value: Any = answer
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            chosen[name] = value
    return chosen


def sse(value: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"

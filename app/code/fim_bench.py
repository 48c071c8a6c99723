"""Benchmark from keystroke to suggestion: type into the middle of a real file and time each first token."""

import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec

from app.client import Client
from engine.api.chat import InfillEvent
from engine.chat.fim import FimGap, shortened

# The text after the cursor moves in the prompt with every keystroke, so it is evaluated every time. A suffix of
# 1/32 of the prefix keeps 95 % of the prompt cached. The minimum is about two lines.
_SUFFIX_DIVISOR = 32
_SUFFIX_FLOOR_CHARS = 96
# Editors do not read a longer suggestion; each response is closed after its first token.
MAX_TOKENS = 48


class FimBench(msgspec.Struct, frozen=True, kw_only=True):
    """Results over all warm keystrokes. `reuse_frac`: fraction of prompt tokens that came from the cache."""

    model: str | None
    keystrokes: int
    answered: int
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    cold_ms: float
    reuse_frac: float
    mean_prompt_tokens: float


def keystrokes(text: str, start: int, count: int) -> Iterator[tuple[str, int]]:
    """Yield (buffer, cursor) after each of `count` characters typed at `start`; the following lines stay below."""
    lines = text[start:].split("\n", 1)
    below = "\n" + lines[1] if len(lines) > 1 else ""
    for number in range(1, count + 1):
        typed = text[start : start + number]
        yield text[:start] + typed + below, start + number


def gap_at(path: str, buffer: str, cursor: int, window_chars: int) -> FimGap:
    """The request of an editor when the cursor is at character `cursor`."""
    gap = FimGap(prefix=buffer[:cursor], suffix=buffer[cursor:], path=path)
    keep_prefix = min(cursor, window_chars)
    keep_suffix = max(keep_prefix // _SUFFIX_DIVISOR, _SUFFIX_FLOOR_CHARS)
    return shortened(gap, keep_prefix=keep_prefix, keep_suffix=keep_suffix, keep_extra=0)


def run(
    client: Client,
    text: str,
    path: str,
    *,
    model: str | None = None,
    count: int = 120,
    window_chars: int = 2400,
    max_tokens: int = MAX_TOKENS,
) -> FimBench:
    """Type `count` characters into the middle of `text`; each keystroke closes the previous response.

    With `max_tokens` 1 a response counts although its token has no text: for files with random weights.
    """
    start = text.rfind("\n", 0, len(text) * 2 // 3) + 1
    times: list[float] = []
    prompt = cached = 0
    cold = 0.0
    for number, (buffer, cursor) in enumerate(keystrokes(text, start, count + 1)):
        gap = gap_at(path, buffer, cursor, window_chars)
        first_s, num_prompt, num_cached = _first(client, gap, model, max_tokens)
        if number == 0:
            cold = (first_s or 0.0) * 1000
            continue
        prompt += num_prompt
        cached += num_cached
        if first_s is not None:
            times.append(first_s * 1000)
    ordered = sorted(times) or [0.0]
    return FimBench(
        model=model,
        keystrokes=count,
        answered=len(times),
        p50_ms=statistics.median(ordered),
        p90_ms=ordered[int(0.9 * (len(ordered) - 1))],
        p95_ms=ordered[int(0.95 * (len(ordered) - 1))],
        p99_ms=ordered[int(0.99 * (len(ordered) - 1))],
        cold_ms=cold,
        reuse_frac=cached / prompt if prompt else 0.0,
        mean_prompt_tokens=prompt / count,
    )


def _first(client: Client, gap: FimGap, model: str | None, max_tokens: int) -> tuple[float | None, int, int]:
    """Return seconds to the first token (None if there was none), prompt tokens, and cached prompt tokens.

    Closing the stream ends the work within one ubatch. Raises: ApiError, ServerUnreachable.
    """
    body: dict[str, Any] = {
        "input_prefix": gap.prefix,
        "input_suffix": gap.suffix,
        "filename": gap.path,
        "n_predict": max_tokens,
        "temperature": 0.0,
        "stream": True,
    }
    started_at = time.perf_counter()
    prompt = cached = 0
    with closing(client.stream("/infill", InfillEvent, {**body, "model": model} if model else body)) as events:
        for event in events:
            prompt = prompt if event.tokens_evaluated is None else event.tokens_evaluated
            cached = cached if event.tokens_cached is None else event.tokens_cached
            if event.content or (event.stop and max_tokens == 1):
                return time.perf_counter() - started_at, prompt, cached
            if event.stop:
                break
    return None, prompt, cached

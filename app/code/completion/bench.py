"""Keystroke to suggestion: type a real file into the middle of itself and time the first token of each answer."""

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from app.client import Client
from app.code.completion.policy import request_at
from app.code.completion.request import suggest


@dataclass(frozen=True, kw_only=True)
class FimBench:
    """Results over all warm keystrokes. `reuse_frac`: share of prompt tokens that came from the cache."""

    model: str | None
    keystrokes: int
    answered: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    cold_ms: float
    reuse_frac: float
    mean_prompt_tokens: float

    def as_dict(self) -> dict[str, object]:
        """For JSON output."""
        return asdict(self)


def keystrokes(text: str, start: int, count: int) -> Iterator[tuple[str, int]]:
    """(buffer, cursor) after each of `count` characters typed at `start`; what was there stays below."""
    rest = text[start:].split("\n", 1)
    below = "\n" + rest[1] if len(rest) > 1 else ""
    for number in range(1, count + 1):
        typed = text[start : start + number]
        yield text[:start] + typed + below, start + number


def run(
    client: Client,
    text: str,
    path: str,
    *,
    model: str | None = None,
    count: int = 120,
    window_chars: int = 2400,
) -> FimBench:
    """Type `count` characters into the middle of `text`; each keystroke leaves the answer before it."""
    start = text.rfind("\n", 0, len(text) * 2 // 3) + 1
    times: list[float] = []
    prompt = cached = 0
    cold = 0.0
    for number, (buffer, cursor) in enumerate(keystrokes(text, start, count + 1)):
        request = request_at(path, buffer, cursor, window_chars=window_chars)
        got = suggest(client, request, model, first_only=True)
        if number == 0:
            cold = (got.first_token_s or 0.0) * 1000
            continue
        prompt += got.prompt_tokens
        cached += got.cached_tokens
        if got.first_token_s is not None:
            times.append(got.first_token_s * 1000)
    ordered = sorted(times) or [0.0]
    return FimBench(
        model=model,
        keystrokes=count,
        answered=len(times),
        p50_ms=statistics.median(ordered),
        p90_ms=ordered[int(0.9 * (len(ordered) - 1))],
        p99_ms=ordered[int(0.99 * (len(ordered) - 1))],
        cold_ms=cold,
        reuse_frac=cached / prompt if prompt else 0.0,
        mean_prompt_tokens=prompt / count,
    )

"""Timed streaming requests, the same for every server that speaks /v1/completions."""

import json
import threading
import time
from dataclasses import dataclass, field

import httpx2


@dataclass
class Reply:
    """What one streamed request showed its client. Times are seconds since it was sent."""

    text: str = ""
    arrivals: list[float] = field(default_factory=list)
    total: float = 0.0
    usage: dict = field(default_factory=dict)

    @property
    def first(self) -> float:
        """Time to the first token."""
        return self.arrivals[0] if self.arrivals else self.total

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


def complete(url: str, model: str, prompt, tokens: int, **options) -> Reply:
    """Stream one completion."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    reply = Reply()
    started = time.perf_counter()
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=1200) as response:
        if response.status_code != 200:
            response.read()
            raise RuntimeError(response.text)
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            data = json.loads(line[6:])
            if data.get("usage"):
                reply.usage = data["usage"]
            choices = data.get("choices")
            if choices and choices[0].get("text"):
                reply.arrivals.append(time.perf_counter() - started)
                reply.text += choices[0]["text"]
    reply.total = time.perf_counter() - started
    return reply


def together(calls) -> tuple[list[Reply], float]:
    """Run several `complete` calls at once; their replies and the seconds all took."""
    replies: list[Reply | None] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(i, call):
        try:
            replies[i] = call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i, call)) for i, call in enumerate(calls)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [r for r in replies if r is not None], time.perf_counter() - started

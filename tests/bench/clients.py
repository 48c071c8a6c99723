"""Timed streaming requests, the same for every server that speaks /v1/completions."""

import http.client
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Reply:
    """What one streamed request's client observed. Times are seconds since `started`, a clock's time."""

    text: str = ""
    arrivals: list[float] = field(default_factory=list)
    total: float = 0.0
    started: float = 0.0
    usage: dict = field(default_factory=dict)

    @property
    def first(self) -> float:
        """Time to the first token."""
        return self.arrivals[0] if self.arrivals else self.total

    @property
    def waits(self) -> list[float]:
        """Seconds from the request to the first token, and from each to the next."""
        return [b - a for a, b in zip([0.0, *self.arrivals], self.arrivals, strict=False)]

    def waits_during(self, other: "Reply") -> list[float]:
        """The gaps between tokens that overlap the time between another request and its first token."""
        sent = other.started - self.started
        pairs = zip([0.0, *self.arrivals], self.arrivals, strict=False)
        return [b - a for a, b in pairs if b > sent and a < sent + other.first]


def complete(
    url: str, model: str, prompt, tokens: int, *, clock: Callable[[], float] = time.perf_counter, **options
) -> Reply:
    """Stream one completion. `clock` is read at each line: wall-clock seconds, or the server's CPU seconds."""
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
    reply, lines = Reply(), []
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=1200)
    started = clock()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(response.read().decode())
    # Lines are stored and parsed afterwards: parsing would take CPU time from both servers.
    while line := response.readline():
        if len(line) > 2:
            lines.append((clock() - started, line))
    connection.close()
    for arrival, line in lines:
        if not line.startswith(b"data: {"):
            continue
        data = json.loads(line[6:])
        if data.get("usage"):
            reply.usage = data["usage"]
        choices = data.get("choices")
        if choices and choices[0].get("text"):
            reply.arrivals.append(arrival)
            reply.text += choices[0]["text"]
    reply.total = lines[-1][0] if lines else 0.0
    reply.started = started
    return reply


def together(calls) -> tuple[list[Reply], float]:
    """Run several `complete` calls concurrently; their replies and the seconds in all."""
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

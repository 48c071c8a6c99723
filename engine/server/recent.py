"""The latest requests with their numbers, and the programs that sent them."""

import re
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

import msgspec

from engine.api.requests import Program, RecentActivity, RequestRecord
from engine.core.types import Timings, Usage

MAX_REQUESTS: Final = 200
MAX_PROGRAMS: Final = 100
# A program counts as connected for this long after a request. Source: the longest polling interval of editors.
CONNECTED_S: Final = 300.0
_PRODUCT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+/-]{0,39}")


current: ContextVar[RequestRecord | None] = ContextVar("current", default=None)


class RecentRequests:
    """The latest requests and programs, in memory only."""

    def __init__(self) -> None:
        self._requests: deque[RequestRecord] = deque(maxlen=MAX_REQUESTS)
        self._programs: OrderedDict[tuple[str, str], Program] = OrderedDict()

    def began(self, record: RequestRecord, *, counts: bool) -> None:
        """Record a new request; if `counts` (it runs a model), list it too."""
        key = (record.program, record.address)
        seen = self._programs.get(key)
        if seen is None:
            seen = Program(name=record.program, address=record.address, first_seen=record.time, last_seen=0)
            self._programs[key] = seen
            if len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)
        seen.last_seen = record.time
        seen.num_requests += 1
        seen.active += 1
        self._programs.move_to_end(key)
        if counts:
            self._requests.append(record)

    def ended(self, record: RequestRecord, *, status: int, seconds: float, sent_bytes: int) -> None:
        """Record that the response is complete or the client has disconnected (status 0)."""
        record.status, record.seconds, record.sent_bytes, record.running = status, seconds, sent_bytes, False
        program = self._programs.get((record.program, record.address))
        if program is not None:
            program.last_seen = record.time + seconds
            program.active = max(0, program.active - 1)

    def snapshot(self) -> RecentActivity:
        """Newest first; a program is connected if it sent a request recently or has one running."""
        now = time.time()
        programs = tuple(
            msgspec.structs.replace(p, connected=p.active > 0 or now - p.last_seen < CONNECTED_S)
            for p in reversed(self._programs.values())
        )
        return RecentActivity(requests=tuple(reversed(self._requests)), programs=programs)


def note_usage(model: str, usage: Usage, timings: Timings) -> None:
    """Add the numbers of a finished generation to the current request."""
    record = current.get()
    if record is None:
        return
    record.model = model
    record.prompt_tokens = (record.prompt_tokens or 0) + usage.prompt_tokens
    record.cached_tokens = (record.cached_tokens or 0) + usage.cached_tokens
    record.completion_tokens = (record.completion_tokens or 0) + usage.completion_tokens
    if timings.ttft_s > 0:
        record.ttft_s = timings.ttft_s
    gaps = usage.completion_tokens - 1
    if gaps > 0 and timings.decode_s > 0:
        record.tok_s = round(gaps / timings.decode_s, 2)


def program_of(headers: Mapping[bytes, bytes]) -> str:
    """The first product of the User-Agent, truncated; the rest of it is not stored."""
    match = _PRODUCT.match(headers.get(b"user-agent", b"").decode("latin-1").strip())
    return match.group() if match else "unknown"

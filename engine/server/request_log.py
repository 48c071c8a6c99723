"""One line for each request, without any content; a request id; counters; where the time went; who asked."""

import logging
import secrets
import time
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.api.requests import RequestRecord
from engine.core.request_timing import TimeLog, start_clock
from engine.message_catalog import sentence
from engine.server.auth import manages
from engine.server.metrics import Metrics
from engine.server.recent import RecentRequests, current, program_of

log = logging.getLogger("engine.access")

# Routes that programs poll; their lines would bury the others.
_QUIET: Final = frozenset({"/health", "/metrics"})
# Only these methods run a model on a route that is not of the management.
_ASKING: Final = frozenset({"POST"})
_MOST_PATH: Final = 60


class RequestLog:
    """ASGI middleware, outermost. Neither query strings nor headers are written: they may carry secrets."""

    def __init__(self, app: ASGIApp, metrics: Metrics, times: TimeLog, recent: RecentRequests) -> None:
        self._app = app
        self._metrics = metrics
        self._times = times
        self._recent = recent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(8)}"
        clock = start_clock(request_id)
        status, sent = 0, 0
        receiving = True

        async def timed() -> Message:
            """The body's pieces count as time on the network; what comes after it only tells that a client left."""
            nonlocal receiving
            before = time.monotonic()
            message = await receive()
            if receiving:
                clock.network_s += time.monotonic() - before
                receiving = bool(message.get("more_body"))
            return message

        async def counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                if clock.ran_on:
                    message["headers"].append(
                        (b"x-tessera-ran-on", sentence(clock.ran_on).encode("ascii", "replace"))
                    )
            else:
                sent += len(message.get("body", b""))
            before = time.monotonic()
            await send(message)
            clock.network_s += time.monotonic() - before

        record = self._begin(scope, request_id)
        token = current.set(record)
        try:
            await self._app(scope, timed, counted)
        finally:
            current.reset(token)
            elapsed = time.monotonic() - clock.began
            if clock.model:
                self._times.add(clock, getattr(scope.get("route"), "path", "unknown"))
            if record is not None:
                self._recent.ended(record, status=status, seconds=elapsed, sent_bytes=sent)
            self._write(scope, request_id, status, sent, elapsed)

    def _begin(self, scope: Scope, request_id: str) -> RequestRecord | None:
        path = scope["path"]
        if path in _QUIET or path == "/" or manages(path):
            return None
        client = scope.get("client")
        record = RequestRecord(
            id=request_id,
            time=time.time(),
            route=path if path.isprintable() and len(path) <= _MOST_PATH else "unknown",
            program=program_of(dict(scope["headers"])),
            address=client[0] if client else "-",
        )
        self._recent.began(record, counts=scope["method"] in _ASKING)
        return record

    def _write(self, scope: Scope, request_id: str, status: int, sent: int, elapsed: float) -> None:
        route: Any = scope.get("route")
        # The pattern of the route, never the path as it came: a label for each path would fill the memory.
        template = getattr(route, "path", "unknown")
        self._metrics.requests.labels(template, f"{status // 100}xx" if status else "left").inc()
        if template in _QUIET:
            return
        client = scope.get("client")
        log.info(
            "id=%s method=%s route=%s status=%s ms=%d bytes=%d from=%s",
            request_id,
            scope["method"][:16],
            template,
            status or "-",
            elapsed * 1000,
            sent,
            client[0] if client else "-",
        )

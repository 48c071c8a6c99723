"""One line for each request, without any content; a request id; counters by route."""

import logging
import secrets
import time
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.metrics import Metrics

log = logging.getLogger("engine.access")

# Routes that programs poll; their lines would bury the others.
_QUIET: Final = frozenset({"/health", "/metrics"})


class RequestLog:
    """ASGI middleware, outermost. Neither query strings nor headers are written: they may carry secrets."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(8)}"
        started = time.monotonic()
        status, sent = 0, 0

        async def counted(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            self._write(scope, request_id, status, sent, time.monotonic() - started)

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

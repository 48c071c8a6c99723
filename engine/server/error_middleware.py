"""What no route handles, in the protocol's own shape, inside the request log, on a connection that stays usable.

Bugs are a 500; a system without descriptors, memory or disk space, and a server that is being stopped, a 503.
"""

import asyncio
import json
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.core.errors import EnvironmentFault, exhausted
from engine.message_catalog.reasons import because
from engine.server.error_shape import error_body
from engine.server.errors import lookup, retry_header

log = logging.getLogger(__name__)


class Stopping(EnvironmentFault):
    """The server ends before this answer does."""

    code = "stopping"

    def __init__(self) -> None:
        super().__init__(because("server_stopping"))


class LastResort:
    """ASGI middleware: what no route has handled. A response that has begun can only be cut off, by the server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            await send(message)
            started = started or message["type"] == "http.response.start"

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:  # the server ends and has waited long enough for its answers
            if not started:
                await _send_error(scope, Stopping(), send)
        except Exception as error:
            if started:
                raise
            fault = exhausted(error)
            if fault is None:
                log.exception("unexpected error")
            else:
                log.warning("request refused, the system has no more %s: %s", fault.what, error)
            await _send_error(scope, fault or error, send)


async def _send_error(scope: Scope, error: Exception, send: Send) -> None:
    body = json.dumps(error_body(scope, error)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in retry_header(error).items()),
    ]
    await send({"type": "http.response.start", "status": lookup(error)[0], "headers": headers})
    await send({"type": "http.response.body", "body": body})

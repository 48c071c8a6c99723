"""Bugs as answers: a 500 in the protocol's own shape, inside the request log, on a connection that stays usable."""

import json
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.error_shape import error_body

log = logging.getLogger(__name__)


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
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if started:
                raise
            log.exception("unexpected error")
            body = json.dumps(error_body(scope["path"], error)).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"x-should-retry", b"false"),
            ]
            await send({"type": "http.response.start", "status": 500, "headers": headers})
            await send({"type": "http.response.body", "body": body})

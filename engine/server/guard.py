"""First in line for every request: who may speak to this server, and how much they may say.

A page in a browser can send requests to loopback; a foreign `Host` (DNS rebinding) or `Origin` is refused before
any route sees the request.
"""

import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.error_shape import refusal_body

# Enough for a 1 M token prompt or a few pictures; larger bodies are refused before they are read into memory.
MAX_BODY_BYTES: Final = 64 << 20
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class BodyTooLarge(Exception):
    """More bytes than MAX_BODY_BYTES arrived."""


def _name(netloc: str) -> str:
    try:
        return (urlsplit(f"//{netloc}").hostname or "").lower()
    except ValueError:
        return ""


class Guard:
    """ASGI middleware: Host allow-list, Origin allow-list, body size.

    `hosts` are names the server answers to besides loopback; `origins` are pages that may call it (none by
    default, so cross-origin pages get no answer and no CORS header).
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = LOOPBACK_NAMES | {h.lower() for h in hosts}
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        if "//" in scope["path"]:  # clients that join a base URL carelessly
            scope = {**scope, "path": "/" + "/".join(part for part in scope["path"].split("/") if part)}
        if _name(headers.get("host", "")) not in self._hosts:
            await refuse(
                scope, send, 403, "forbidden_host", f"This server does not answer to {headers.get('host', '')!r}."
            )
            return
        origin = headers.get("origin")
        if origin is not None and not self._allowed(origin):
            await refuse(scope, send, 403, "forbidden_origin", f"Pages from {origin!r} may not use this server.")
            return
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            await refuse(
                scope, send, 413, "body_too_large", f"The body has {length} bytes; the limit is {MAX_BODY_BYTES}."
            )
            return
        await self._limited(scope, receive, send, origin)

    def _allowed(self, origin: str) -> bool:
        return origin in self._origins

    async def _limited(self, scope: Scope, receive: Receive, send: Send, origin: str | None) -> None:
        taken = 0
        started = False

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > MAX_BODY_BYTES:
                raise BodyTooLarge
            return message

        async def watched(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if origin is not None:
                    message.setdefault("headers", [])
                    message["headers"] = [
                        *message["headers"],
                        (b"access-control-allow-origin", origin.encode("latin-1")),
                        (b"vary", b"Origin"),
                    ]
            await send(message)

        try:
            await self._app(scope, counted, watched)
        except BodyTooLarge:
            if not started:
                await refuse(scope, send, 413, "body_too_large", f"The body is larger than {MAX_BODY_BYTES} bytes.")


async def refuse(scope: Scope, send: Send, status: int, code: str, message: str) -> None:
    """Answer with an error in the shape of the path's protocol, without reaching any route."""
    body = json.dumps(refusal_body(scope["path"], status, code, message)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-should-retry", b"false"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

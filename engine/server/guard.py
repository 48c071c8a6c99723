"""First in line for every request: who may speak to this server, and how much they may say.

A page in a browser can send requests to loopback; a foreign `Host` (DNS rebinding) or `Origin` is refused before
any route sees the request.
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.error_shape import refusal_body

# Enough for a 1 M token prompt or a few pictures; larger bodies are refused before they are read into memory.
MAX_BODY_BYTES: Final = 64 << 20
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


# Seconds between two pieces of a body. A client that stalls longer holds memory for nothing.
BODY_PAUSE_S: Final = 30.0
# Bodies up to this are read away before a refusal, for at most so long.
DRAIN_BYTES: Final = 1 << 20
DRAIN_S: Final = 2.0
_FORM_TYPES: Final = frozenset({"text/plain", "multipart/form-data", "application/x-www-form-urlencoded"})
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class BodyTooSlow(Exception):
    """The body paused for longer than BODY_PAUSE_S."""


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
        refusal = self._stranger(headers) or _unfit(scope["method"], headers)
        if refusal is not None:
            await refuse(scope, receive, send, *refusal)
            return
        origin = headers.get("origin")
        if scope["method"] == "OPTIONS" and origin is not None and "access-control-request-method" in headers:
            await _preflight(send, origin)
            return
        await self._bounded(scope, receive, send, origin)

    def _stranger(self, headers: dict[str, str]) -> tuple[int, str, str] | None:
        """Why this host or page may not speak to the server; None if it may."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if _name(host) not in self._hosts:
            return 403, "forbidden_host", f"This server does not answer to {host!r}."
        if origin is not None and origin not in self._origins:
            return 403, "forbidden_origin", f"Pages from {origin!r} may not use this server."
        if origin is None and headers.get("sec-fetch-site") == "cross-site":
            return 403, "forbidden_origin", "Pages of other sites may not use this server."
        return None

    async def _bounded(self, scope: Scope, receive: Receive, send: Send, origin: str | None) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if origin is not None:
                    message["headers"] = [
                        *message.get("headers", ()),
                        (b"access-control-allow-origin", origin.encode("latin-1")),
                        (b"vary", b"Origin"),
                    ]
            await send(message)

        try:
            await self._app(scope, _BoundedBody(receive), watched)
        except BodyTooSlow:
            if not started:
                message = f"The body stopped coming for {BODY_PAUSE_S:.0f} s."
                await _hang_up(scope, send, 408, "body_too_slow", message)
        except BodyTooLarge:
            if not started:
                await _hang_up(
                    scope, send, 413, "body_too_large", f"The body is larger than {MAX_BODY_BYTES} bytes."
                )


class _BoundedBody:
    """A `receive` that counts and times the pieces of the body."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._taken = 0
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:  # from here on only the client's leaving is waited for
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), BODY_PAUSE_S)
        except TimeoutError:
            raise BodyTooSlow from None
        self._whole = not message.get("more_body", False)
        self._taken += len(message.get("body", b""))
        if self._taken > MAX_BODY_BYTES:
            raise BodyTooLarge
        return message


def _unfit(method: str, headers: dict[str, str]) -> tuple[int, str, str] | None:
    """Why a request of this form is refused before it is read."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page can send forms without asking first; a terminal's curl says urlencoded by default.
    form = kind in _FORM_TYPES and (kind != "application/x-www-form-urlencoded" or _from_browser(headers))
    if form and method not in _SAFE_METHODS:
        message = f"Send JSON with content-type: application/json, not {kind}."
        return 415, "unsupported_media_type", message
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        return 413, "body_too_large", f"The body has {length} bytes; the limit is {MAX_BODY_BYTES}."
    return None


def _from_browser(headers: dict[str, str]) -> bool:
    return any(name in headers for name in ("origin", "sec-fetch-site", "referer"))


async def _preflight(send: Send, origin: str) -> None:
    """The answer to a listed page that asks whether it may send a request."""
    headers = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
        (
            b"access-control-allow-headers",
            b"authorization, content-type, x-api-key, anthropic-version, anthropic-beta",
        ),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Origin"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _hang_up(scope: Scope, send: Send, status: int, code: str, message: str) -> None:
    """Refuse a body that is not read to its end."""

    async def nothing() -> Message:
        raise TimeoutError

    await refuse(scope, nothing, send, status, code, message)


async def drain(scope: Scope, receive: Receive) -> bool:
    """Read a small body away; True when the connection can stay open.

    A server that answers and closes while the client still writes resets the connection, and many clients then
    report the reset instead of the answer.
    """
    length = next((v for k, v in scope["headers"] if k.lower() == b"content-length"), None)
    chunked = any(k.lower() == b"transfer-encoding" for k, _ in scope["headers"])
    if chunked or (length is not None and (not length.isdigit() or int(length) > DRAIN_BYTES)):
        return False
    try:
        async with asyncio.timeout(DRAIN_S):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return False
    return True


async def refuse(
    scope: Scope, receive: Receive, send: Send, status: int, code: str, message: str, *more: tuple[bytes, bytes]
) -> None:
    """Answer with an error in the shape of the path's protocol, without reaching any route."""
    body = json.dumps(refusal_body(scope["path"], status, code, message)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-should-retry", b"false"),
        *more,
    ]
    if not await drain(scope, receive):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

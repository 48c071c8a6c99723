"""The middleware before every route, outermost first: RequestLog, ErrorMiddleware, Guard, AccessCheck.

A web page can send requests to loopback. A foreign `Host` (DNS rebinding) or `Origin` is refused before routing.
"""

import asyncio
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.api.requests import RequestRecord
from engine.core.errors import Cancelled, EnvironmentFault, exhausted
from engine.core.keys import BadKeyFile
from engine.core.ownership import is_own_program, request_owner
from engine.core.request_timing import Clock, TimeLog, start_clock
from engine.message_catalog import sentence
from engine.message_catalog.reasons import because
from engine.server.auth import Access, Forbidden, TooManyFailures, Unauthorized, manages
from engine.server.error_shape import error_body, refusal_body
from engine.server.errors import lookup, retry_header
from engine.server.origin_check import AllowedOrigins, OriginCheck
from engine.server.recent import RecentRequests, current, program_of
from engine.server.sse import BODY_SENDER

if TYPE_CHECKING:
    from engine.server.metrics import Metrics

log = logging.getLogger(__name__)

access_log = logging.getLogger("engine.access")

# Routes that programs poll; they are not logged.
_QUIET: Final = frozenset({"/health", "/metrics"})
# Other routes than management ones run a model only with these methods.
_ASKING: Final = frozenset({"POST"})
_MOST_PATH: Final = 60


def _id_headers(path: str, request_id: str) -> list[tuple[bytes, bytes]]:
    """The id of a request, also under the name that Anthropic's clients read."""
    names = (b"x-request-id", b"request-id") if path.startswith("/v1/messages") else (b"x-request-id",)
    return [(name, request_id.encode()) for name in names]


class RequestLog:
    """Outermost ASGI middleware. Logs neither query strings nor headers, which may contain secrets."""

    def __init__(
        self, app: ASGIApp, metrics: "Callable[[], Metrics]", times: TimeLog, recent: RecentRequests
    ) -> None:
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
            """Count the time until the body is complete as network time.

            Later messages only report a disconnect.
            """
            nonlocal receiving
            before = time.monotonic()
            message = await receive()
            if receiving:
                clock.network_s += time.monotonic() - before
                receiving = bool(message.get("more_body"))
            return message

        async def pass_on(message: Message) -> None:
            """Send a message, and count its part of the body and the time."""
            nonlocal sent
            sent += len(message.get("body", b""))
            before = time.monotonic()
            await send(message)
            clock.network_s += time.monotonic() - before

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_id_headers(scope["path"], request_id)]
                if clock.ran_on:
                    message["headers"].append(
                        (b"x-tessera-ran-on", sentence(clock.ran_on).encode("ascii", "replace"))
                    )
            await pass_on(message)

        scope["extensions"] = {**scope.get("extensions", {}), BODY_SENDER: pass_on}
        record = self._begin(scope, request_id)
        token = current.set(record)
        try:
            await self._app(scope, timed, counted)
        finally:
            scope["extensions"].pop(BODY_SENDER, None)  # else a cycle with the request keeps its body
            current.reset(token)
            elapsed = time.monotonic() - clock.began
            if clock.model:
                self._times.add(clock, getattr(scope.get("route"), "path", "unknown"))
            if record is not None:
                self._recent.ended(record, status=status, seconds=elapsed, sent_bytes=sent)
            self._write(scope, clock, status, sent, elapsed)

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

    def _write(self, scope: Scope, clock: Clock, status: int, sent: int, elapsed: float) -> None:
        route: Any = scope.get("route")
        # Use the route's pattern, never the path of the request: one label per path would fill the memory.
        template = getattr(route, "path", "unknown")
        self._metrics().requests.labels(template, f"{status // 100}xx" if status else "left").inc()
        if template in _QUIET:
            return
        client = scope.get("client")
        access_log.info(
            "id=%s method=%s route=%s status=%s ms=%d waited_ms=%d bytes=%d from=%s",
            clock.id,
            scope["method"][:16],
            template,
            status or "-",
            elapsed * 1000,
            (clock.load_s + clock.queue_s) * 1000,
            sent,
            client[0] if client else "-",
        )


# Middleware for unhandled errors: it responds in the protocol's format, inside the request log, and keeps the
# connection usable. Bugs give a 500. A system without descriptors, memory or disk space, and a server that is being
# stopped, give a 503.


class Stopping(EnvironmentFault):
    """The server stops before this response ends."""

    code = "stopping"

    def __init__(self) -> None:
        super().__init__(because("server_stopping"))


class BodyRefused(Exception):
    """The limits of a body were exceeded while a route read it; with the response that says so."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class ErrorMiddleware:
    """ASGI middleware for exceptions that no route has handled. A response that has started can only be cut off."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def begun(message: Message) -> None:
            nonlocal started
            await send(message)
            started = True

        def watched(message: Message) -> Awaitable[None]:
            return send(message) if started else begun(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:  # the server stops and has waited long enough for its responses
            if not started:
                await _send_error(scope, Stopping(), send)
        except BodyRefused as error:
            if not started:
                await _hang_up(scope, send, error.status, error.code, str(error))
        except Exception as error:
            if started:
                raise
            await _send_error(scope, _logged(error), send)


def _logged(error: Exception) -> Exception:
    """The error to report for one that no route has handled, which is logged if it is the server's."""
    if isinstance(error, ClientDisconnect):  # while the route read the body
        return Cancelled("the client closed the connection")
    fault = exhausted(error)
    if fault is None:
        log.error("unexpected error", exc_info=error)
        return error
    log.warning("request refused, missing: %s: %s", fault.what, error)
    return fault


async def _send_error(scope: Scope, error: Exception, send: Send) -> None:
    body = json.dumps(error_body(scope, error)).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in retry_header(error).items()),
    ]
    await send({"type": "http.response.start", "status": lookup(error)[0], "headers": headers})
    await send({"type": "http.response.body", "body": body})


# Guard: who may send requests, and how large their bodies may be.

# Enough for a prompt of 1 M tokens or a few images; larger bodies are refused before they are read into memory.
MAX_BODY_BYTES: Final = 64 << 20
# Maximum pause between two chunks of a body. A client that stalls longer would only hold memory.
BODY_PAUSE_S: Final = 30.0
# Maximum time for a whole body: 64 MiB over a slow connection. One byte per 30 s would hold memory for years.
BODY_S: Final = 300.0
# Maximum size of large bodies in memory, all clients together. The first SMALL_BODY_BYTES of a body do not count.
MAX_HELD_BYTES: Final = 192 << 20
MAX_HELD_BYTES_OF_A_KEY: Final = 96 << 20
SMALL_BODY_BYTES: Final = 1 << 20
# Before a refusal, bodies up to this size are read and discarded, for at most DRAIN_S.
DRAIN_BYTES: Final = 1 << 20
DRAIN_S: Final = 2.0
_FORM_TYPES: Final = frozenset({"text/plain", "multipart/form-data", "application/x-www-form-urlencoded"})
_FORM_PATHS: Final = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations", "/v1/files"})
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
NOBODY_ELSE: Final = AllowedOrigins()


class Guard:
    """ASGI middleware: checks Host, Origin and body size. Refused pages get no CORS header."""

    def __init__(self, app: ASGIApp, callers: AllowedOrigins = NOBODY_ELSE) -> None:
        self._app = app
        self._strangers = OriginCheck(callers)
        self._held_bytes = HeldBytes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        if "//" in scope["path"]:  # some clients join a base URL incorrectly
            scope = {**scope, "path": "/" + "/".join(part for part in scope["path"].split("/") if part)}
        refusal = self._strangers.refusal(headers, scope["scheme"]) or _unfit(
            scope["method"], scope["path"], headers
        )
        if sum(k.lower() == b"host" for k, _ in scope["headers"]) > 1:
            refusal = 400, "duplicate_host", "The request names its host twice."
        if refusal is not None:
            await refuse(scope, receive, send, *refusal)
            return
        origin = headers.get("origin")
        if scope["method"] == "OPTIONS" and origin is not None and "access-control-request-method" in headers:
            await _preflight(send, origin, headers.get("access-control-request-headers", ""))
            return
        # the HTTP server omits the body of HEAD responses
        if scope["method"] == "HEAD" and not manages(scope["path"]):
            scope = {**scope, "method": "GET"}
        await self._bounded(scope, receive, send, origin)

    async def _bounded(self, scope: Scope, receive: Receive, send: Send, origin: str | None) -> None:
        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start" and origin is not None:
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"access-control-allow-origin", origin.encode("latin-1")),
                    (b"vary", b"Origin"),
                ]
            await send(message)

        body = _BoundedBody(receive, self._held_bytes)
        try:
            await self._app(scope, body, watched)
        finally:
            body.release()


class HeldBytes:
    """Total size of the large bodies in memory, of all requests and of those of each API key."""

    def __init__(self) -> None:
        self.count = 0
        self._of_owner: Counter[str] = Counter()

    def change(self, owner: str, num_bytes: int) -> None:
        """Add bytes of an owner, or remove them."""
        self.count += num_bytes
        self._of_owner[owner] += num_bytes
        if not self._of_owner[owner]:
            del self._of_owner[owner]

    def is_full(self, owner: str) -> bool:
        """Return True if the limit of this owner is reached."""
        own = self._of_owner[owner] if owner else 0
        return self.count > MAX_HELD_BYTES or own > MAX_HELD_BYTES_OF_A_KEY


class _BoundedBody:
    """A `receive` that limits the size and time of the body."""

    def __init__(self, receive: Receive, held_bytes: HeldBytes) -> None:
        self._receive = receive
        self._held_bytes = held_bytes
        self._owner = ""
        self._mine = 0
        self._num_taken = 0
        self._whole = False
        self._started_at = asyncio.get_running_loop().time()

    def release(self) -> None:
        """Called when the body is no longer in memory."""
        if self._mine:
            self._held_bytes.change(self._owner, -self._mine)
        self._mine = 0

    async def __call__(self) -> Message:
        if self._whole:  # the body is complete: wait only for a disconnect
            return await self._receive()
        seconds_left = self._started_at + BODY_S - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(self._receive(), min(BODY_PAUSE_S, max(seconds_left, 0)))
        except TimeoutError:
            why = f"The body paused for {BODY_PAUSE_S:.0f} s, or took longer than {BODY_S:.0f} s."
            raise BodyRefused(408, "body_too_slow", why) from None
        self._whole = not message.get("more_body", False)
        self._num_taken += len(message.get("body", b""))
        if self._num_taken > MAX_BODY_BYTES:
            raise BodyRefused(413, "body_too_large", f"The body is larger than {MAX_BODY_BYTES} bytes.")
        beyond = max(self._num_taken - SMALL_BODY_BYTES, 0)
        if beyond:
            self._owner = self._owner or request_owner.get()  # known after the key check
            self._held_bytes.change(self._owner, beyond - self._mine)
            self._mine = beyond
            if self._held_bytes.is_full(self._owner):
                why = (
                    f"Other requests hold {MAX_HELD_BYTES >> 20} MiB of large bodies, or those of this key "
                    f"{MAX_HELD_BYTES_OF_A_KEY >> 20} MiB; try again soon."
                )
                raise BodyRefused(503, "server_busy", why)
        return message


def _unfit(method: str, path: str, headers: dict[str, str]) -> tuple[int, str, str] | None:
    """A refusal based on the headers, before the body is read; None to accept."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    # A page can send forms without a preflight. curl in a terminal sends urlencoded by default.
    form = (
        kind in _FORM_TYPES
        and not _takes_form(path, kind, headers)
        and (kind != "application/x-www-form-urlencoded" or _from_browser(headers))
    )
    if form and method not in _SAFE_METHODS:
        message = f"Send JSON with content-type: application/json, not {kind}."
        return 415, "unsupported_media_type", message
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"identity", ""} and method not in _SAFE_METHODS:
        message = f"content-encoding {coding[:32]!r} is not read here; send the JSON as it is."
        return 415, "unsupported_content_encoding", message
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        return 413, "body_too_large", f"The body has {length} bytes; the limit is {MAX_BODY_BYTES}."
    return None


def _takes_form(path: str, kind: str, headers: dict[str, str]) -> bool:
    """Whether the route takes file uploads as forms. A page's form needs an Origin, which was checked before."""
    sent_by_page = _from_browser(headers) and "origin" not in headers
    return kind == "multipart/form-data" and path in _FORM_PATHS and not sent_by_page


def _from_browser(headers: dict[str, str]) -> bool:
    return any(name in headers for name in ("origin", "sec-fetch-site", "referer"))


async def _preflight(send: Send, origin: str, names: str) -> None:
    """Response to the CORS preflight of an allowed page."""
    headers = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
        # Clients of an allowed page send additional headers (x-stainless-* of OpenAI's); only the origin matters.
        (b"access-control-allow-headers", names.encode("latin-1") or b"authorization, content-type, x-api-key"),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Origin, Access-Control-Request-Headers"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _hang_up(scope: Scope, send: Send, status: int, code: str, message: str) -> None:
    """Refuse a body without reading the rest of it."""

    async def nothing() -> Message:
        raise TimeoutError

    await refuse(scope, nothing, send, status, code, message)


async def drain(scope: Scope, receive: Receive) -> bool:
    """Read and discard a small body; return True if the connection can stay open.

    If a server responds and closes while the client still writes, the connection is reset. Many clients then report
    the reset instead of the response.
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
    """Respond with an error in the format of the path's protocol, without calling a route."""
    body = json.dumps(refusal_body(scope, status, code, message)).encode()
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


class AccessCheck:
    """ASGI middleware that checks `Access` before any route and records the owner of the request."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
            try:
                client = scope.get("client")
                caller = self._access.check(scope["path"], headers, client[0] if client else "")
                request_owner.set(caller.owner)
                is_own_program.set(caller.is_own)
            except Unauthorized as error:
                await refuse(scope, receive, send, 401, error.code, str(error))
                return
            except Forbidden as error:
                await refuse(scope, receive, send, 403, error.code, str(error))
                return
            except TooManyFailures as error:
                wait = (b"retry-after", str(error.retry_after_s).encode())
                await refuse(scope, receive, send, 429, error.code, str(error), wait)
                return
            except BadKeyFile as error:
                log.error("%s", error)  # noqa: TRY400 - the message is complete; a traceback would hide it
                await refuse(scope, receive, send, 503, error.code, "The server's file of API keys cannot be read.")
                return
        await self._app(scope, receive, send)

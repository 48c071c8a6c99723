"""The HTTP application: middleware, error answers, the routes a first answer needs, and all others behind them."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.core.keys import BadKeyFile
from engine.core.prefix_owner import prefix_owner
from engine.core.proof import proof
from engine.server.auth import Access, Forbidden, TooManyFailures, Unauthorized
from engine.server.error_middleware import LastResort
from engine.server.event_loop_watchdog import start_threads
from engine.server.guard import NOBODY_ELSE, Guard, refuse
from engine.server.handlers import HANDLERS
from engine.server.lazy_app import LateRoutes
from engine.server.malloc_trim import give_back_when_idle
from engine.server.openai import completions, models
from engine.server.openai import routes as chat
from engine.server.origin_check import Callers
from engine.server.request_log import RequestLog
from engine.server.root import health, root
from engine.server.routing import EarlyRoute
from engine.server.state import ServerState, server_state

# Nothing that can wait is imported while people begin to work.
MEASURE_AFTER_S: Final = 60.0
log = logging.getLogger(__name__)


class AccessCheck:
    """ASGI middleware that asks `Access` before any route, and notes whose request it is."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
            try:
                client = scope.get("client")
                prefix_owner.set(self._access.check(scope["path"], headers, client[0] if client else ""))
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
                log.error("%s", error)  # noqa: TRY400 - the words say all; a trace would only bury them
                await refuse(scope, receive, send, 503, error.code, "The server's file of API keys cannot be read.")
                return
        await self._app(scope, receive, send)


def create_app(
    state: ServerState, callers: Callers = NOBODY_ELSE, before_late: Callable[[], None] = lambda: None
) -> Starlette:
    """The application around `state`; closing it stops every runner.

    `before_late` is called once, in a thread, before a route that is not needed early is served.
    """

    def build() -> ASGIApp:
        gc.disable()  # what is imported is no garbage: looking for some is a sixth of this
        try:
            from engine.server.all_routes import every_route  # noqa: PLC0415 - must not hold up a first answer

            before_late()
            return every_route(state)
        finally:
            gc.enable()

    late = LateRoutes(build)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        state.renderer.warm()
        if state.utilization is not None:
            state.utilization.start()
        preparation = asyncio.create_task(_make_ready(state, late))
        memory = asyncio.create_task(give_back_when_idle(lambda: state.pool.busy))
        attention = asyncio.create_task(_measure_attention(state))
        yield
        for task in (attention, memory, preparation):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if state.utilization is not None:
            await state.utilization.stop()
        await state.streams.close()
        await state.close_collections()
        await asyncio.to_thread(state.jobs.close)
        await state.pool.close()
        state.links.close()
        state.power.close()
        await state.remotes.close()
        await state.speech.close()
        state.renderer.close()
        state.checker.close()

    early = [
        EarlyRoute("/health", _health, methods=["GET"]),
        EarlyRoute("/", root, methods=["GET", "HEAD"]),
        *(route for module in (models, chat, completions) for route in module.router.plain()),
    ]
    app = Starlette(routes=early, exception_handlers=HANDLERS, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.router.default = late
    app.state.server = state
    app.add_middleware(AccessCheck, access=state.access)
    app.add_middleware(Guard, callers=callers)
    app.add_middleware(LastResort)
    app.add_middleware(RequestLog, metrics=state.metrics, times=state.times, recent=state.recent)
    return app


async def _make_ready(state: ServerState, late: LateRoutes) -> None:
    """Once nobody waits for an answer: what later requests would otherwise wait for."""
    await late.ready_when_idle(lambda: state.pool.busy)
    await start_threads()
    try:
        state.checker.warm()
        if state.has_collections:
            await state.collection_service()
    except OSError as error:  # whoever asks for them tries again
        log.warning("collections or grammars are not ready yet: %s", error)


async def _measure_attention(state: ServerState) -> None:
    await asyncio.sleep(MEASURE_AFTER_S)  # what measures is imported long after a first answer
    from engine.server.idle_attention_bench import IdleAttention  # noqa: PLC0415

    await IdleAttention(state).run()


async def _health(request: Request) -> Response:
    """This user's own programs first ask who listens here: see `engine.core.proof`."""
    proven = proof(server_state(request).access.token, request.query_params.get("challenge", ""))
    return JSONResponse({**await health(), **({"proof": proven} if proven is not None else {})})

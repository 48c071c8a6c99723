"""The HTTP application: middleware, error answers and every protocol's routes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.errors import EngineError, InputFault
from engine.server.anthropic import messages as anthropic_messages
from engine.server.auth import Access, Forbidden, TooManyFailures, Unauthorized
from engine.server.error_shape import error_body, refusal_body
from engine.server.errors import lookup, retry_header
from engine.server.guard import Guard, refuse
from engine.server.keys import BadKeyFile
from engine.server.manage import jobs as manage_jobs
from engine.server.manage import keys as manage_keys
from engine.server.manage import library as manage_library
from engine.server.manage import machine as manage_machine
from engine.server.manage import measuring as manage_measuring
from engine.server.manage import models as manage_models
from engine.server.manage import quantizing as manage_quantizing
from engine.server.manage import recent as manage_recent
from engine.server.manage import stats as manage_stats
from engine.server.ollama import models as ollama_models
from engine.server.ollama import run as ollama_run
from engine.server.openai import chat, completions, embeddings, fim, lmstudio, models, tokens
from engine.server.openapi import complete
from engine.server.request_log import RequestLog
from engine.server.responses import routes as responses
from engine.server.state import ServerState, server_state
from engine.version import __version__

log = logging.getLogger(__name__)


class AccessCheck:
    """ASGI middleware that asks `Access` before any route."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
            try:
                client = scope.get("client")
                self._access.check(scope["path"], headers, client[0] if client else "")
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


def create_app(state: ServerState, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> FastAPI:
    """The application around `state`; closing it stops every runner."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.renderer.warm()
        state.checker.warm()
        if state.utilization is not None:
            state.utilization.start()
        yield
        if state.utilization is not None:
            await state.utilization.stop()
        await asyncio.to_thread(state.jobs.close)
        await state.pool.close()
        state.renderer.close()
        state.checker.close()

    app = FastAPI(title="Tessera", version=__version__, lifespan=lifespan)
    app.state.server = state
    app.add_middleware(AccessCheck, access=state.access)
    app.add_middleware(Guard, hosts=tuple(hosts), origins=tuple(origins))
    app.add_middleware(RequestLog, metrics=state.metrics, times=state.times, recent=state.recent)
    for module in (models, chat, completions, fim, embeddings, tokens, lmstudio):
        app.include_router(module.router)
    for module in (responses, anthropic_messages, ollama_run, ollama_models):
        app.include_router(module.router)
    for managed in (manage_models, manage_keys, manage_stats, manage_machine, manage_library, manage_jobs):
        app.include_router(managed.router)
    for also in (manage_quantizing, manage_measuring, manage_recent):
        app.include_router(also.router)
    app.add_exception_handler(EngineError, _engine_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _bug)
    app.add_api_route("/health", _health, methods=["GET"])
    app.add_api_route("/metrics", _metrics, methods=["GET"], response_class=PlainTextResponse)
    app.add_api_route("/", _root, methods=["GET", "HEAD"], include_in_schema=False)
    complete(app)
    return app


async def _health() -> dict[str, str]:
    """200 as soon as requests are taken."""
    return {"status": "ok", "version": __version__}


async def _root() -> dict[str, str]:
    return {"name": "Tessera", "version": __version__, "docs": "/docs"}


async def _metrics(request: Request) -> Response:
    """Prometheus counters."""
    state = server_state(request)
    state.metrics.queue.set(sum(m.runner.active_requests for m in state.pool.loaded if m.runner))
    return PlainTextResponse(generate_latest(state.metrics.registry), media_type="text/plain; version=0.0.4")


async def _engine_error(request: Request, error: Exception) -> Response:
    return JSONResponse(
        error_body(request.url.path, error), status_code=lookup(error)[0], headers=retry_header(error)
    )


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    code = "not_found" if error.status_code == 404 else "http_error"  # noqa: PLR2004 - HTTP
    body = refusal_body(path, error.status_code, code, f"{request.method} {path}: {error.detail}")
    headers = {"x-should-retry": "false", **(error.headers or {})}
    return JSONResponse(body, status_code=error.status_code, headers=headers)


async def _invalid(request: Request, error: Exception) -> Response:
    """Parameters of path and query, which FastAPI checks itself."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    named = ".".join(str(part) for part in first["loc"][1:])
    return await _engine_error(request, InputFault(f"{named}: {first['msg']}.", named))


async def _bug(request: Request, error: Exception) -> Response:
    log.error("unexpected error", exc_info=error)
    body = error_body(request.url.path, error)
    return JSONResponse(body, status_code=500, headers={"x-should-retry": "false"})

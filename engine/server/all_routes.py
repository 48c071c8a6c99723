"""Every protocol's routes, with the page that describes them. Imported behind the first answers, see `late.py`."""

import asyncio
from pathlib import Path
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from prometheus_client import generate_latest
from starlette.responses import Response

from engine.core.errors import InputFault
from engine.core.version import __version__
from engine.server.anthropic import routes as anthropic
from engine.server.error_middleware import LastResort
from engine.server.handlers import HANDLERS, engine_error
from engine.server.llama_server import fim, resumable_streams, tokens
from engine.server.llama_server import routes as llama_server
from engine.server.lmstudio import routes as lmstudio
from engine.server.manage import collections as manage_collections
from engine.server.manage import converting as manage_converting
from engine.server.manage import engine_args as manage_engine_args
from engine.server.manage import jobs as manage_jobs
from engine.server.manage import keys as manage_keys
from engine.server.manage import library as manage_library
from engine.server.manage import machine as manage_machine
from engine.server.manage import measuring as manage_measuring
from engine.server.manage import models as manage_models
from engine.server.manage import power as manage_power
from engine.server.manage import quantizing as manage_quantizing
from engine.server.manage import recent as manage_recent
from engine.server.manage import remotes as manage_remotes
from engine.server.manage import replay as manage_replay
from engine.server.manage import sampling as manage_sampling
from engine.server.manage import stats as manage_stats
from engine.server.manage import upstreams as manage_upstreams
from engine.server.ollama import models as ollama_models
from engine.server.ollama import routes as ollama
from engine.server.openai import audio, completions, embeddings, files, models, unsupported, vector_stores
from engine.server.openai import routes as chat
from engine.server.openapi import complete
from engine.server.responses import compaction, conversations
from engine.server.responses import routes as responses
from engine.server.root import health, root
from engine.server.state import ServerState, server_state

DOCS_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def every_route(state: ServerState) -> FastAPI:
    """An application of all routes. Those that are served early are in it for its OpenAPI page."""
    # The page is our own: FastAPI's would fetch scripts from elsewhere, and stay blank offline.
    app = FastAPI(title="Tessera", version=__version__, docs_url=None, redoc_url=None)
    app.state.server = state
    app.add_middleware(LastResort)
    for early in (models, chat, completions):
        app.include_router(early.router.documented())
    for module in (llama_server, resumable_streams, audio, fim, embeddings, tokens, lmstudio, unsupported):
        app.include_router(module.router)
    for module in (responses, compaction, conversations, anthropic, ollama, ollama_models):
        app.include_router(module.router)
    for managed in (manage_models, manage_keys, manage_stats, manage_machine, manage_library, manage_jobs):
        app.include_router(managed.router)
    for module in (manage_collections, manage_replay, files, vector_stores):
        app.include_router(module.router)
    for also in (manage_sampling, manage_engine_args, manage_quantizing, manage_measuring, manage_recent):
        app.include_router(also.router)
    app.include_router(manage_converting.router)
    app.include_router(manage_upstreams.router)
    app.include_router(manage_remotes.router)
    app.include_router(manage_power.router)
    for raised, handler in HANDLERS.items():
        app.add_exception_handler(raised, handler)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/v1/health", health, methods=["GET"], include_in_schema=False)
    app.add_api_route("/metrics", _metrics, methods=["GET"], response_class=PlainTextResponse)
    app.add_api_route("/", root, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/docs", _docs, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/chat", _chat, methods=["GET", "HEAD"], include_in_schema=False)
    complete(app)
    return app


async def _docs() -> Response:
    """Every route with its fields, to be tried out. It asks for nothing but this server's own answers."""
    return await _page("docs.html")


async def _chat() -> Response:
    """A chat for phones. It asks for nothing but this server's own answers."""
    return await _page("chat.html")


async def _page(name: str) -> Response:
    page = await asyncio.to_thread(Path(__file__).with_name(name).read_text, "utf-8")
    return HTMLResponse(page, headers={"content-security-policy": DOCS_POLICY, "x-frame-options": "DENY"})


async def _metrics(request: Request) -> Response:
    """Prometheus counters."""
    state = server_state(request)
    state.metrics.queue.set(sum(m.runner.active_requests for m in state.pool.loaded if m.runner))
    return PlainTextResponse(generate_latest(state.metrics.registry), media_type="text/plain; version=0.0.4")


async def _invalid(request: Request, error: Exception) -> Response:
    """Parameters of path and query, which FastAPI checks itself."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    named = ".".join(str(part) for part in first["loc"][1:])
    return await engine_error(request, InputFault(f"{named}: {first['msg']}.", named))

"""Health check and root page."""

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from engine.core.version import __version__


async def health() -> dict[str, str]:
    """Returns 200 as soon as the server accepts requests."""
    return {"status": "ok", "version": __version__}


async def root(request: Request) -> Response:
    """Root page: redirects browsers to the docs; JSON clients get name and version, others Ollama's sentence."""
    accepted = request.headers.get("accept", "")
    if "text/html" in accepted:
        return RedirectResponse("/docs")
    if "application/json" in accepted:
        return JSONResponse({"name": "Tessera", "version": __version__, "docs": "/docs"})
    return PlainTextResponse("Ollama is running")

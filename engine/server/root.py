"""What stands at the root: whether the server lives, and what it is."""

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from engine.core.version import __version__


async def health() -> dict[str, str]:
    """200 as soon as requests are taken."""
    return {"status": "ok", "version": __version__}


async def root(request: Request) -> Response:
    """A browser gets the page of routes, a program that wants JSON our name, any other Ollama's sentence."""
    accepted = request.headers.get("accept", "")
    if "text/html" in accepted:
        return RedirectResponse("/docs")
    if "application/json" in accepted:
        return JSONResponse({"name": "Tessera", "version": __version__, "docs": "/docs"})
    return PlainTextResponse("Ollama is running")

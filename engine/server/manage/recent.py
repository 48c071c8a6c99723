"""GET /tessera/v1/requests: the last requests with their numbers, and the programs that sent them."""

from typing import Any

from fastapi import APIRouter, Request

from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1", tags=["management"])


@router.get("/requests")
async def requests(request: Request) -> dict[str, Any]:
    """The last requests that ran a model and who is connected; newest first, kept in memory only."""
    return server_state(request).recent.told()

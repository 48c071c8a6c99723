"""GET /tessera/v1/requests: the latest requests with their numbers, and the programs that sent them."""

from fastapi import APIRouter, Request

from engine.api.requests import RecentActivity
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1", tags=["management"], route_class=TypedRoute)


@router.get("/requests")
async def requests(request: Request) -> RecentActivity:
    """The latest requests that ran a model, and the connected programs; newest first, in memory only."""
    return server_state(request).recent.snapshot()

"""GET /tessera/v1/requests: the last requests with their numbers, and the programs that sent them."""

from fastapi import APIRouter, Request

from engine.api.requests import RecentActivity
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1", tags=["management"], route_class=TypedRoute)


@router.get("/requests")
async def requests(request: Request) -> RecentActivity:
    """The last requests that ran a model and who is connected; newest first, kept in memory only."""
    return server_state(request).recent.snapshot()

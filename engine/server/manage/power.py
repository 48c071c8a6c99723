"""/tessera/v1/power: a mode, a cap in watts, a part of the battery."""

from fastapi import APIRouter, Request

from engine.api.machine import PowerLimits, PowerState
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1/power", tags=["machine"], route_class=TypedRoute)


@router.get("")
async def power(request: Request) -> PowerState:
    """What work here may draw, and what it does draw where a meter tells."""
    return server_state(request).power.state()


@router.put("")
async def set_power(request: Request, body: PowerLimits) -> PowerState:
    """Replace the limits; fields left out are not bounded. It is kept for the next start."""
    service = server_state(request).power
    service.set(body)
    return service.state()

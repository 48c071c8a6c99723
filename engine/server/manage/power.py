"""/tessera/v1/power: a mode, a limit in watts, a battery budget."""

from fastapi import APIRouter, Request

from engine.api.machine import PowerLimits, PowerState
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1/power", tags=["machine"], route_class=TypedRoute)


@router.get("")
async def power(request: Request) -> PowerState:
    """The power limits and, if a meter is available, the current power."""
    return server_state(request).power.state()


@router.put("")
async def set_power(request: Request, body: PowerLimits) -> PowerState:
    """Replace the limits; omitted fields are unlimited. The limits are stored for the next start."""
    service = server_state(request).power
    service.set(body)
    return service.state()

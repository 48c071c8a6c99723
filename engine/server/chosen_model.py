"""The model of a request that need not name one."""

from engine.errors import InputFault
from engine.loaded_model import LoadedModel
from engine.reasons import because
from engine.server.state import ServerState


async def chosen_model(state: ServerState, name: str | None) -> LoadedModel:
    """The named model; without a name the loaded one that was used last, else the first that can be served."""
    if name is not None:
        return await state.pool.acquire(name)
    loaded = sorted(state.pool.loaded, key=lambda m: m.last_used)
    if loaded:
        return loaded[-1]
    served = [e.id for e in await state.models.entries() if e.servable and e.state == "online"]
    if not served:
        raise InputFault(because("no_model_at_all"), "model")
    return await state.pool.acquire(served[0])

"""Selects the model of a request that may omit it."""

from engine.core.errors import InputFault
from engine.message_catalog.reasons import because
from engine.pool.loaded_model import REMOTE, LoadedModel
from engine.pool.pool import HERE
from engine.server.state import ServerState


async def chosen_model(state: ServerState, name: str | None, only: str | None = None) -> LoadedModel:
    """The named model; without a name the most recently used loaded local model, else the first local model.

    `only` as in `Pool.acquire`.
    """
    if name is not None:
        return await state.pool.acquire(name, only=only)
    loaded = sorted((m for m in state.pool.loaded if m.engine != REMOTE), key=lambda m: m.last_used)
    if loaded:
        return loaded[-1]
    served = [e.id for e in await state.models.automatic() if e.servable and e.state == "online"]
    if not served:
        raise InputFault(because("no_model_at_all"), "model")
    return await state.pool.acquire(served[0], only=HERE)

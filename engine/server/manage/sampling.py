"""/tessera/v1/models/{id}/sampling: what a model samples with, who decided it, and the user's own values."""

from fastapi import APIRouter, Request

from engine.api.models import Decided, ModelSampling, SamplingRequest
from engine.core.sampling import Chosen, Layer, choose
from engine.library.types import ModelEntry
from engine.server.models import ServedModels
from engine.server.msgspec_routes import TypedRoute
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1", tags=["management"], route_class=TypedRoute)


@router.get("/models/{model:path}/sampling")
async def model_sampling(request: Request, model: str) -> ModelSampling:
    """What is in force for a model, and what is recommended."""
    models = server_state(request).models
    return describe(models, await models.entry(model))


@router.put("/models/{model:path}/sampling")
async def set_model_sampling(request: Request, model: str, body: SamplingRequest) -> ModelSampling:
    """Set the user's own values for a model; none at all goes back to what is recommended."""
    models = server_state(request).models
    entry = await models.entry(model)
    models.user_settings.set_sampling(entry.id, body.values)
    return describe(models, entry)


def describe(models: ServedModels, entry: ModelEntry) -> ModelSampling:
    """The decision for a model as a whole."""
    found = models.recommended_for(entry)
    usual, plain = found.layers(None), found.plain
    return ModelSampling(
        id=entry.id,
        user=models.user_settings.get(entry.id).sampling,
        in_force=decided(choose({}, usual)),
        recommended=decided(choose({}, _without_user(usual))),
        in_force_without_reasoning=decided(choose({}, plain)),
        recommended_without_reasoning=decided(choose({}, _without_user(plain))),
    )


def _without_user(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return tuple(layer for layer in layers if layer.source != "user")


def decided(chosen: Chosen) -> dict[str, Decided]:
    """What was chosen, as the management routes tell it."""
    return {
        name: Decided(value=getattr(chosen.params, name), source=source, link=chosen.links.get(name, ""))
        for name, source in chosen.sources.items()
    }

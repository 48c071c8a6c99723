"""Interfaces that resolve a model name to load settings, or to another server."""

from typing import Protocol

import msgspec

from engine.message_catalog.reasons import Reason
from engine.placement.types import ModelSettings, Placement
from engine.runner.protocol import LoadSettings


class ResolvedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it would be loaded now: its id, engine and settings.

    `chosen` are the user's settings for the model at that time. `placement` gives the device and the reasons if
    placement chose them; its settings equal `settings`. `keep` pins the model. `server` is the URL of the other
    server that answers, or "" for this computer; `ran_on` reports it.
    """

    model_id: str
    engine: str
    settings: LoadSettings
    placement: Placement | None = None
    keep: bool = False
    chosen: ModelSettings = ModelSettings()
    server: str = ""
    ran_on: Reason | None = None


class ModelSource(Protocol):
    """Resolves a model name to load settings."""

    async def resolve(self, model: str, min_ctx: int = 0) -> ResolvedModel:
        """Load settings with a context of at least `min_ctx` tokens, up to the training context. Changes no state.

        The user's context setting for the model, or for all models, is the minimum. 0 leaves the length to the
        placement.
        Raises: ModelNotFound or another TesseraError.
        """
        ...

    def chosen(self, model_id: str) -> ModelSettings:
        """The user's current settings for a model."""
        ...


class UpstreamRouter(Protocol):
    """The user's routing rules for other servers."""

    def always(self, model: str) -> ResolvedModel | None:
        """The route for all requests with this name; None: answer locally. Raises: InputFault."""
        ...

    def relief(self, model_id: str, queued: int | None) -> ResolvedModel | None:
        """The route for a request with `queued` others before it; `queued` None: the model does not fit here."""
        ...

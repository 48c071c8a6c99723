"""How a model's name becomes what a runner needs, and whether another machine answers instead."""

from typing import Protocol

import msgspec

from engine.message_catalog.reasons import Reason
from engine.placement.types import ModelSettings, Placement
from engine.runner.protocol import LoadSettings


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it would be loaded now: its id, the engine that runs it, its settings.

    `chosen` is what the user had set for the model then.
    `placement` says where and why, if a dispatcher chose; its settings are `settings`. `keep`: it stays loaded.
    `server` is the address of the other server that answers, empty for this machine; `ran_on` reports it.
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
    """Turns a model's name into what a runner needs."""

    async def resolve(self, model: str, min_ctx: int = 0) -> Resolved:
        """How to load it, with `min_ctx` tokens of context or as many as it was trained for. Keeps nothing.

        What a person chose for the model, or for all, is the least; 0 leaves the number to the dispatcher.
        Raises: ModelNotFound or another TesseraError.
        """
        ...

    def chosen(self, model_id: str) -> ModelSettings:
        """What the user has set for a model by now."""
        ...


class Elsewhere(Protocol):
    """The user's rules for requests that another machine answers."""

    def always(self, model: str) -> Resolved | None:
        """Where all requests for this name go; None: they are answered here. Raises: InputFault."""
        ...

    def relief(self, model_id: str, queued: int | None) -> Resolved | None:
        """Where a request goes that would wait behind `queued` others; None: its model does not fit here."""
        ...

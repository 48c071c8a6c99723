"""The largest context that each model can have on this computer now. Clients adapt their prompts to it."""

import asyncio
import time
from typing import Final

from engine.core.errors import InputFault
from engine.placement.placer import Placer
from engine.placement.types import PlacementLimits
from engine.pool.loaded_model import LoadedModel
from engine.pool.pool import Pool
from engine.runner.load_limits import own_growth_limit
from engine.runner.protocol import LoadSettings
from engine.server.models import ServedModels

# Cache time of a result: clients request the list often, and free memory changes slowly.
FRESH_S: Final = 20.0
# Results are rounded to this many tokens, so that they do not change with every megabyte.
STEP: Final = 1024


class ContextSizes:
    """Computes context sizes from the memory ledger, off the event loop."""

    def __init__(self, models: ServedModels, pool: Pool, placer: Placer) -> None:
        self._models = models
        self._pool = pool
        self._placer = placer
        self._sizes: dict[tuple[str, LoadSettings | None], tuple[float, int]] = {}
        self._looking: dict[tuple[str, LoadSettings | None], asyncio.Task[int]] = {}

    def loaded(self, model_id: str) -> int | None:
        model = self._pool.get(model_id)
        return model.facts.n_ctx if model is not None and model.ready and model.facts is not None else None

    async def largest(self, model_id: str, patience_s: float | None = None) -> int:
        """The context that a model could have: by growing, or with a new load.

        After `patience_s`, return the cached value or the one at load. Raises: ModelNotFound, BadModelFile.
        """
        model = self._pool.get(model_id)
        key = (model_id, model.settings if model is not None and model.ready else None)
        at, tokens = self._sizes.get(key, (0.0, 0))
        if tokens and time.monotonic() - at <= FRESH_S:
            return tokens
        task = self._looking.get(key)
        if task is None:
            task = self._looking[key] = asyncio.create_task(self._look(model_id, model))
            task.add_done_callback(lambda done: self._note(key, done))
        try:
            return await asyncio.wait_for(asyncio.shield(task), patience_s)
        except TimeoutError:
            return (
                tokens or self.loaded(model_id) or self._models.settings(await self._models.entry(model_id)).n_ctx
            )

    def _note(self, key: tuple[str, LoadSettings | None], done: "asyncio.Task[int]") -> None:
        del self._looking[key]
        if not done.cancelled() and done.exception() is None:
            self._sizes = {k: v for k, v in self._sizes.items() if k[0] != key[0]}
            self._sizes[key] = (time.monotonic(), done.result())

    async def _look(self, model_id: str, model: LoadedModel | None) -> int:
        if model is not None and model.ready and model.facts is not None:
            has, most = model.facts.n_ctx, model.facts.max_ctx
            if most <= has:
                return has
            largest = await asyncio.to_thread(self._placer.largest_context, model_id, model.settings, most)
            return _rounded(largest, has, most)
        entry = await self._models.entry(model_id)
        try:
            settings = self._models.settings(entry)
        except InputFault:  # its external program was removed: the load reports that
            return entry.context_train
        if entry.format != "gguf" or settings.embeddings or settings.external is not None:
            return settings.n_ctx
        return await asyncio.to_thread(self._if_loaded, model_id, settings, self._models.overrides_for(entry))

    def _if_loaded(self, model_id: str, settings: LoadSettings, overrides: PlacementLimits) -> int:
        try:
            placed = self._placer.placement(model_id, settings, overrides, exact=False)
        except InputFault:  # the file is unreadable: the load reports that
            return settings.n_ctx
        if not placed.fits:
            return settings.n_ctx
        has, most = placed.settings.n_ctx, own_growth_limit(placed.settings)
        return _rounded(self._placer.largest_context(model_id, placed.settings, most), has, most)


def _rounded(tokens: int, least: int, most: int) -> int:
    return most if tokens >= most else max(least, tokens - tokens % STEP)

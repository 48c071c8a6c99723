"""The context of a loaded model grows when a request needs more of it, and shrinks when nobody did for long."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Protocol, runtime_checkable

import msgspec

from devices.errors import TesseraError
from engine.core.errors import ContextCannotGrow, ContextOverflow
from engine.placement.fit import resize_context
from engine.placement.memory_admission import MemoryAdmission
from engine.pool.loaded_model import LoadedModel, Runner
from engine.runner.protocol import ContextWanted, LoadSettings, Resized

log = logging.getLogger(__name__)

# Room for an answer behind the prompt that a context grows for. Source: runner/llama/batch/admission.py, twice.
ANSWER_TOKENS: Final = 1024
# Contexts come in whole blocks of llama.cpp's cells. Source: llama-context.cpp, GGML_PAD(n_ctx, 256).
STEP: Final = 256
# A context whose model was not used for so long goes back to the size of its load.
SHRINK_AFTER_S: Final = 1800.0


@runtime_checkable
class GrowingRunner(Runner, Protocol):
    """A runner whose context can change its size while it answers."""

    on_context_wanted: Callable[[ContextWanted], None]

    async def resize(self, n_ctx: int, kv_cells: int, *, through_disk: bool = False) -> Resized: ...
    def keep_context(self, wanted: ContextWanted, error: TesseraError) -> None: ...


class ContextGrowth:
    """Asks the ledger, then the runner.

    `evict` unloads an idle model and says whether there was one; `evictable` names those that it may unload.
    """

    def __init__(
        self, admission: MemoryAdmission, evict: Callable[[], Awaitable[bool]], evictable: Callable[[], set[str]]
    ) -> None:
        self._admission = admission
        self._evict = evict
        self._evictable = evictable

    async def grow(self, model: LoadedModel, tokens: int, *, exact: bool = False) -> None:
        """Let a request have `tokens`, prompt and answer together. The caller admits nothing else meanwhile.

        `exact`: somebody named this size; else there is room for more to come.

        Raises: ContextOverflow: the model was trained for less, or its context keeps its size. ContextCannotGrow:
        there is no memory for it. RequestFailed, RunnerDied.
        """
        facts, runner, before = model.facts, model.runner, model.settings
        if facts is None or tokens <= facts.n_ctx:
            return
        if tokens > facts.largest_ctx or not isinstance(runner, GrowingRunner):
            raise ContextOverflow(tokens - 1, facts.largest_ctx)
        sizes = (_resized(before, tokens),) if exact else tuple(larger(before, tokens, facts.max_ctx))
        while (found := await self._first_that_fits(model, sizes)) is None:
            if not await self._eviction_helps(model, sizes[-1]) or not await self._evict():
                raise await self._refusal(model, tokens, sizes[-1])
        after, through_disk = found
        await self._resize(model, runner, after, through_disk=through_disk)

    async def _first_that_fits(
        self, model: LoadedModel, sizes: tuple[LoadSettings, ...]
    ) -> tuple[LoadSettings, bool] | None:
        """The first of some settings that there is memory for, and whether states go through a file."""
        for after in sizes:
            for through_disk in (False, True):
                copied = None if through_disk else model.settings
                if await self._admission.shortage(model.id, after, copied) is None:
                    return after, through_disk
        return None

    async def _eviction_helps(self, model: LoadedModel, least: LoadSettings) -> bool:
        """Without all idle models there would be room: no other model is unloaded in vain."""
        missing, idle = await self._admission.shortage(model.id, least, None), self._evictable()
        if missing is None:
            return True
        freed = sum(held for owner, held in self._admission.others(model.id) if owner in idle)
        return missing.needed_bytes - missing.available_bytes <= freed

    async def _refusal(self, model: LoadedModel, tokens: int, least: LoadSettings) -> ContextCannotGrow:
        assert model.facts is not None
        largest = await self._admission.largest_context(model.id, model.settings, tokens)
        missing = await self._admission.shortage(model.id, least, None)
        lacking = missing.needed_bytes - missing.available_bytes if missing is not None else 0
        unload: list[str] = []
        for owner, held in self._admission.others(model.id):
            if lacking > 0:
                unload.append(owner)
                lacking -= held
        names = tuple(unload) if lacking <= 0 else ()
        return ContextCannotGrow(tokens - 1, max(largest, model.facts.n_ctx), model.facts.n_ctx, names)

    async def shrink(self, model: LoadedModel) -> None:
        """Go back to the size of the load, if the context has grown and nobody uses it."""
        if not isinstance(model.runner, GrowingRunner) or model.loaded_settings is None or not has_grown(model):
            return
        first = model.loaded_settings
        after = msgspec.structs.replace(model.settings, n_ctx=first.n_ctx, kv_cells=first.kv_cells)
        await self._resize(model, model.runner, after)

    async def _resize(
        self, model: LoadedModel, runner: GrowingRunner, after: LoadSettings, *, through_disk: bool = False
    ) -> None:
        before, cells = model.settings, max(after.kv_cells, after.n_ctx)
        resized = await runner.resize(after.n_ctx, cells, through_disk=through_disk)
        if model.proven == before:
            model.proven = after
        model.settings = after
        assert model.facts is not None
        model.facts = msgspec.structs.replace(model.facts, n_ctx=resized.n_ctx)
        await self._admission.resized(model.id, after)
        log.info(
            "resized model=%s n_ctx=%d before=%d state_bytes=%d ms=%d",
            model.id, resized.n_ctx, before.n_ctx, resized.state_bytes, resized.seconds * 1000,
        )  # fmt: skip


def has_grown(model: LoadedModel) -> bool:
    """The context is larger than that of the load."""
    return model.ready and model.loaded_settings is not None and model.settings.n_ctx > model.loaded_settings.n_ctx


def larger(settings: LoadSettings, tokens: int, most: int) -> Iterator[LoadSettings]:
    """Settings with room for `tokens`, best first: doubled until an answer fits as well, at last just enough.

    A cache for several long requests becomes one for as many, or one that a single request fills.
    """
    size = settings.n_ctx
    while size < tokens + ANSWER_TOKENS:
        size *= 2
    least = -(-tokens // STEP) * STEP
    for n_ctx in dict.fromkeys((min(size, most), min(least + ANSWER_TOKENS, most), min(least, most))):
        scaled, single = resize_context(settings, n_ctx), _resized(settings, n_ctx)
        yield scaled
        if single != scaled:
            yield single


def _resized(settings: LoadSettings, n_ctx: int) -> LoadSettings:
    """The same cache if one request of `n_ctx` tokens fits into it, else one that it fills."""
    return msgspec.structs.replace(settings, n_ctx=n_ctx, kv_cells=max(settings.kv_cells, n_ctx))

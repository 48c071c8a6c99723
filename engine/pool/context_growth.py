"""Grows a loaded model's context when a request needs more, and shrinks it after a long idle time."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Protocol, runtime_checkable

import msgspec

from devices.errors import TesseraError
from engine.core.errors import ContextCannotGrow, ContextOverflow
from engine.placement.memory_admission import MemoryAdmission, uninterrupted
from engine.pool.loaded_model import LoadedModel, Runner
from engine.runner.faults import RequestFailed
from engine.runner.load_limits import growth_limit, resize_context
from engine.runner.protocol import ContextWanted, LoadSettings, Resized

log = logging.getLogger(__name__)

# Tokens reserved for the response when a context grows. Source: twice ANSWER_RESERVE of
# runner/llama/batch/admission.py.
ANSWER_TOKENS: Final = 1024
# Context lengths are multiples of llama.cpp's block size. Source: llama-context.cpp, GGML_PAD(n_ctx, 256).
STEP: Final = 256
# After this many idle seconds, a grown context shrinks to its size at load.
SHRINK_AFTER_S: Final = 1800.0


@runtime_checkable
class GrowingRunner(Runner, Protocol):
    """A runner whose context can be resized while it generates."""

    on_context_wanted: Callable[[ContextWanted], None]

    async def resize(self, n_ctx: int, kv_cells: int, *, through_disk: bool = False) -> Resized: ...
    def keep_context(self, request: ContextWanted, error: TesseraError) -> None: ...


class ContextGrowth:
    """Resizes contexts: checks the memory ledger first, then calls the runner.

    `evict` unloads an idle model and returns False if there was none. `evictable` returns the models that it may
    unload.
    """

    def __init__(
        self, admission: MemoryAdmission, evict: Callable[[], Awaitable[bool]], evictable: Callable[[], set[str]]
    ) -> None:
        self._admission = admission
        self._evict = evict
        self._evictable = evictable

    async def grow(self, model: LoadedModel, tokens: int, *, exact: bool = False, evicts: bool = True) -> None:
        """Grow the context to hold `tokens` (prompt and response). The caller must admit no other load meanwhile.

        `exact`: the user requested this size; otherwise more space is added for later tokens. `evicts`: idle models
        may be unloaded for it.

        Raises:
            ContextOverflow: The model was trained for less, the user set less, or its context cannot be resized.
            ContextCannotGrow: There is not enough memory.
            RunnerDied: The resize failed, and the model has to be loaded again.
        """
        facts, runner, before = model.facts, model.runner, model.settings
        if facts is None or tokens <= facts.n_ctx:
            return
        limit = growth_limit(before) if exact and facts.max_ctx else facts.largest_ctx
        if tokens > limit or not isinstance(runner, GrowingRunner):
            raise ContextOverflow(tokens - 1, limit)
        sizes = (_resized(before, tokens),) if exact else tuple(larger(before, tokens, facts.max_ctx))
        while (fitting := await self._first_that_fits(model, sizes)) is None:
            if not evicts or not await self._eviction_helps(model, sizes[-1]) or not await self._evict():
                raise await self._refusal(model, tokens, sizes[-1])
        after, through_disk = fitting
        try:
            await uninterrupted(self._resize(model, runner, after, through_disk=through_disk))
        except RequestFailed as error:  # the system had less memory, or less disk space, than the ledger counts
            log.warning("model=%s keeps its context: %s", model.id, error)
            raise ContextCannotGrow(tokens - 1, facts.n_ctx, facts.n_ctx) from error

    async def _first_that_fits(
        self, model: LoadedModel, sizes: tuple[LoadSettings, ...]
    ) -> tuple[LoadSettings, bool] | None:
        """The first of `sizes` that fits in memory, and whether the KV state has to go through a file."""
        assert model.facts is not None
        for after in sizes:
            stays = max(after.kv_cells, after.n_ctx) <= model.facts.reserved_cells  # nothing is copied
            for through_disk in (False,) if stays else (False, True):
                copied = None if through_disk or stays else model.settings
                if await self._admission.shortage(model.id, after, copied) is None:
                    return after, through_disk
        return None

    async def _eviction_helps(self, model: LoadedModel, least: LoadSettings) -> bool:
        """Whether evicting all idle models would free enough memory. Avoids useless evictions."""
        missing, idle = await self._admission.shortage(model.id, least, None), self._evictable()
        if missing is None:
            return True
        freed = sum(num_bytes for owner, num_bytes in self._admission.others(model.id) if owner in idle)
        return missing.needed_bytes - missing.available_bytes <= freed

    async def _refusal(self, model: LoadedModel, tokens: int, least: LoadSettings) -> ContextCannotGrow:
        assert model.facts is not None
        largest = await self._admission.largest_context(model.id, model.settings, tokens)
        missing = await self._admission.shortage(model.id, least, None)
        lacking = missing.needed_bytes - missing.available_bytes if missing is not None else 0
        unload: list[str] = []
        for owner, num_bytes in self._admission.others(model.id):
            if lacking > 0:
                unload.append(owner)
                lacking -= num_bytes
        names = tuple(unload) if lacking <= 0 else ()
        return ContextCannotGrow(tokens - 1, max(largest, model.facts.n_ctx), model.facts.n_ctx, names)

    async def explained(self, model: LoadedModel, error: ContextOverflow) -> ContextOverflow:
        """The refusal of a prompt that is longer than any context of its model, with the largest that fits here."""
        facts = model.facts
        if facts is None or isinstance(error, ContextCannotGrow) or error.context_tokens < facts.largest_ctx:
            return error
        largest = facts.largest_ctx
        if facts.n_ctx < largest:
            fitting = await self._admission.largest_context(model.id, model.settings, largest)
            largest = max(facts.n_ctx, fitting)
        trained = 0 < facts.n_ctx_train <= largest
        return ContextOverflow(error.prompt_tokens, largest, at_least=error.at_least, trained=trained)

    async def shrink(self, model: LoadedModel) -> None:
        """Shrink a grown context to its size at load if the model is idle."""
        if not isinstance(model.runner, GrowingRunner) or model.loaded_settings is None or not has_grown(model):
            return
        first = model.loaded_settings
        after = msgspec.structs.replace(model.settings, n_ctx=first.n_ctx, kv_cells=first.kv_cells)
        await uninterrupted(self._resize(model, model.runner, after))

    async def _resize(
        self, model: LoadedModel, runner: GrowingRunner, after: LoadSettings, *, through_disk: bool = False
    ) -> None:
        """Resize and record the new size. The runner resizes even if the request that needs it is cancelled."""
        before, cells = model.settings, max(after.kv_cells, after.n_ctx)
        if cells > max(before.kv_cells, before.n_ctx):  # no other load may take this memory meanwhile
            await self._admission.resized(model.id, after)
        try:
            resized = await runner.resize(after.n_ctx, cells, through_disk=through_disk)
        except BaseException:
            await self._admission.resized(model.id, before)
            raise
        if model.proven == before:
            model.proven = after
        model.settings = after
        assert model.facts is not None
        model.facts = msgspec.structs.replace(model.facts, n_ctx=resized.n_ctx)
        model.limit_growth()
        await self._admission.resized(model.id, after)
        way = "file" if through_disk else "memory" if resized.state_bytes else "reserve"
        log.info(
            "resized model=%s n_ctx=%d before=%d through=%s state_bytes=%d ms=%d",
            model.id, resized.n_ctx, before.n_ctx, way, resized.state_bytes,
            resized.seconds * 1000,
        )  # fmt: skip


def should_grow(model: LoadedModel, min_ctx: int) -> bool:
    """Whether a loaded model should get a larger context; a raw argument fixes the size for all."""
    if not model.ready or model.facts is None or model.settings.engine_args.n_ctx is not None:
        return False
    return min(min_ctx, model.facts.n_ctx_train) > model.facts.n_ctx


def has_grown(model: LoadedModel) -> bool:
    """Whether the context is larger than at load."""
    return model.ready and model.loaded_settings is not None and model.settings.n_ctx > model.loaded_settings.n_ctx


def larger(settings: LoadSettings, tokens: int, most: int) -> Iterator[LoadSettings]:
    """Settings that hold `tokens`, best first: doubled sizes with space for a response, then the minimum.

    For a KV cache that held several long requests, first try a cache for the same number, then one for a single
    request.
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
    """Settings with `n_ctx`; the KV cache grows only if one request of that length would not fit."""
    return msgspec.structs.replace(settings, n_ctx=n_ctx, kv_cells=max(settings.kv_cells, n_ctx))

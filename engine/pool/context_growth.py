"""Grows a loaded model's context when a request needs more, and shrinks it after a long idle time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final, Protocol, runtime_checkable

import msgspec

from devices.errors import TesseraError
from engine.core.errors import ContextCannotGrow, ContextOverflow, RunnerDied, exhausted
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

    `admitting` is held while memory is checked and taken. `evict` unloads an idle model and returns False if there
    was none. `evictable` returns the models that it may unload. `holds` returns whether the pool still has a model.
    """

    def __init__(
        self,
        admission: MemoryAdmission,
        admitting: asyncio.Lock,
        evict: Callable[[], Awaitable[bool]],
        evictable: Callable[[], set[str]],
        holds: Callable[[LoadedModel], bool],
    ) -> None:
        self._admission = admission
        self._admitting = admitting
        self._evict = evict
        self._evictable = evictable
        self._holds = holds
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, model: LoadedModel, runner: Runner) -> None:
        """Let the context grow when a request of this runner needs that."""
        if isinstance(runner, GrowingRunner):
            runner.on_context_wanted = partial(self._on_context_wanted, model, runner)

    def _on_context_wanted(self, model: LoadedModel, runner: GrowingRunner, request: ContextWanted) -> None:
        task = asyncio.create_task(self._grow_for(model, runner, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _grow_for(self, model: LoadedModel, runner: GrowingRunner, request: ContextWanted) -> None:
        """Grow for a request of the runner, which waits until the context has grown or growth is refused."""
        n_ctx = model.facts.n_ctx if model.facts is not None else 0
        refusal: TesseraError | None = ContextCannotGrow(request.tokens - 1, n_ctx, n_ctx)
        try:
            await self.grow(model, request.tokens, evicts=not request.wants_cells, cells=request.cells)
            refusal = None
        except RunnerDied:
            refusal = None  # the waiting requests already got this error
        except TesseraError as error:
            refusal = error
        except OSError as error:  # no file descriptor is free, or the model's file is gone
            log.warning("model=%s keeps its context: %s", model.id, error)
            refusal = exhausted(error) or refusal
        finally:
            if refusal is not None:
                runner.keep_context(request, refusal)

    async def grow(
        self, model: LoadedModel, tokens: int, *, exact: bool = False, evicts: bool = True, cells: int = 0
    ) -> None:
        """Grow the context of a model that may be generating. Raises: as `_grow`."""
        with model.in_use():
            async with model.lock:
                if self._holds(model):
                    async with self._admitting:
                        await self._grow(model, tokens, exact=exact, evicts=evicts, cells=cells)

    async def try_to_grow(self, model: LoadedModel, tokens: int) -> None:
        """Grow the context if possible; on failure the request continues. The caller holds the model's lock."""
        try:
            async with self._admitting:
                await self._grow(model, tokens, exact=True)
        except (TesseraError, OSError) as error:
            log.info("model=%s keeps its context: %s", model.id, error)

    async def grown_to(self, model: LoadedModel, n_ctx: int) -> bool:
        """Whether a busy model's context now has that size. An idle model is loaded again instead."""
        if not model.ready or model.idle or model.facts is None or n_ctx <= model.facts.n_ctx:
            return False
        try:
            await self.grow(model, n_ctx, exact=True)
        except (TesseraError, OSError) as error:
            log.info("model=%s keeps its context: %s", model.id, error)
            return False
        if model.facts is None or model.facts.n_ctx > n_ctx:  # another request was first, with a larger size
            return False
        model.settings = model.loaded_settings = msgspec.structs.replace(model.settings, chosen_ctx=n_ctx)
        model.limit_growth()
        return True

    async def _grow(
        self, model: LoadedModel, tokens: int, *, exact: bool, evicts: bool = True, cells: int = 0
    ) -> None:
        """Grow the context to hold `tokens` (prompt and response). The caller must admit no other load meanwhile.

        `exact`: the user requested this size; otherwise more space is added for later tokens. `evicts`: idle models
        may be unloaded for it. `cells`: so many are needed for several requests of the current size.

        Raises:
            ContextOverflow: The model was trained for less, the user set less, or its context cannot be resized.
            ContextCannotGrow: There is not enough memory.
            RunnerDied: The resize failed, and the model has to be loaded again.
        """
        facts, runner = model.facts, model.runner
        sizes = _sizes(model, tokens, exact=exact, cells=cells)
        if facts is None or not sizes:
            return
        if not isinstance(runner, GrowingRunner):
            raise ContextOverflow(tokens - 1, facts.n_ctx)
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
            stays = _cells(after) <= model.facts.reserved_cells  # nothing is copied
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
        before, cells = model.settings, _cells(after)
        if cells > _cells(before):  # no other load may take this memory meanwhile
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
        model.facts = msgspec.structs.replace(
            model.facts, n_ctx=resized.n_ctx, reserved_cells=resized.reserved_cells
        )
        model.limit_growth()
        await self._admission.resized(model.id, after)
        way = "file" if through_disk else "memory" if resized.state_bytes else "reserve"
        log.info(
            "resized model=%s n_ctx=%d before=%d through=%s state_bytes=%d ms=%d",
            model.id, resized.n_ctx, before.n_ctx, way, resized.state_bytes,
            resized.seconds * 1000,
        )  # fmt: skip


def should_grow(model: LoadedModel, min_ctx: int) -> bool:
    """Whether a loaded model should get a larger context; a raw argument and an embedding model fix the size."""
    if not model.ready or model.facts is None:
        return False
    if model.settings.embeddings or model.settings.engine_args.n_ctx is not None:
        return False
    return min(min_ctx, model.facts.n_ctx_train) > model.facts.n_ctx


def has_grown(model: LoadedModel) -> bool:
    """Whether the context is larger than at load."""
    now, first = model.settings, model.loaded_settings
    return model.ready and first is not None and (now.n_ctx > first.n_ctx or _cells(now) > _cells(first))


def _cells(settings: LoadSettings) -> int:
    return max(settings.kv_cells, settings.n_ctx)


def _sizes(model: LoadedModel, tokens: int, *, exact: bool, cells: int) -> tuple[LoadSettings, ...]:
    """Settings with which `tokens` and `cells` fit, best first; none if they fit now. Raises: ContextOverflow."""
    facts, before = model.facts, model.settings
    if facts is None:
        return ()
    if tokens > facts.n_ctx:
        limit = growth_limit(before) if exact and facts.max_ctx else facts.largest_ctx
        if tokens > limit:
            raise ContextOverflow(tokens - 1, limit)
        return (_resized(before, tokens),) if exact else tuple(larger(before, tokens, facts.max_ctx))
    if cells <= _cells(before):
        return ()
    if before.chosen_ctx:  # the user has chosen how much memory the context takes
        raise ContextOverflow(tokens - 1, facts.n_ctx)
    most = before.n_parallel * before.n_ctx
    sizes = (2 * _cells(before), _cells(before) + before.n_ctx // 2)
    return tuple(msgspec.structs.replace(before, kv_cells=min(size, most)) for size in sizes)


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

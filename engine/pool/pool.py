"""The pool of loaded models: one runner per model, with loading on demand, restart after a crash, and eviction."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Final, Literal, cast

import msgspec

from devices.errors import TesseraError
from engine.core.errors import (
    BadModelFile,
    ContextOverflow,
    EnvironmentFault,
    ModelNotLoaded,
    NoLoadSurvived,
    NotEnoughMemory,
    RunnerDied,
    StaysHere,
)
from engine.core.ownership import request_owner
from engine.core.request_timing import current_clock
from engine.core.startup_timing import StartupTimer
from engine.core.types import Done, Event, GenerationRequest, Started
from engine.message_catalog import sentence
from engine.placement.memory_admission import MemoryAdmission, uninterrupted
from engine.pool.context_growth import SHRINK_AFTER_S, ContextGrowth, has_grown, should_grow
from engine.pool.generation_hooks import GenerationHooks, Watch
from engine.pool.loaded_model import MAX_CRASHES, REMOTE, SPREAD, LoadedModel, QueueTicket, Runner, while_needed
from engine.pool.model_resolution import ModelSource, ResolvedModel, UpstreamRouter
from engine.runner.exit_reasons import ended_itself
from engine.runner.load_limits import growth_limit
from engine.runner.protocol import LoadSettings

log = logging.getLogger(__name__)

# If a runner dies this far into a prompt, the driver is at fault rather than the request. Reported from 16,000 on.
AT_DEPTH: Final = 4096
# Interval between checks for idle models. A model outlives its time to live by at most this.
REAP_S: Final = 1.0
# A runner replies between two steps. One that is busy for longer is unloaded without a last measurement.
STATS_S: Final = 1.0
# For `Pool.acquire`: only this server may answer.
HERE: Final = ""
# When changed load settings take effect.
Applies = Literal["now", "when_idle", "at_load"]


Starter = Callable[[str, str], Awaitable[Runner]]


class Pool:
    """Provides live runners by model name.

    `ttl_s` is the default time to live. `max_models` is the maximum number of loaded models (None: limited only by
    the memory that `admission` finds).
    """

    def __init__(
        self,
        source: ModelSource,
        start: Starter,
        admission: MemoryAdmission,
        elsewhere: UpstreamRouter,
        ttl_s: float | None,
        max_models: int | None,
    ) -> None:
        self._source = source
        self._elsewhere = elsewhere
        self._start = start
        self._admission = admission
        self._ttl_s = ttl_s
        self._max_models = max_models
        self._models: dict[str, LoadedModel] = {}
        self._ids: dict[str, str] = {}
        self._admitting = asyncio.Lock()
        self._reaper: asyncio.Task[None] | None = None
        self.hooks = GenerationHooks()
        self._ending: dict[asyncio.Task[None], str] = {}  # unloads in progress, with their models
        self._growth = ContextGrowth(
            admission,
            self._admitting,
            self._evict,
            lambda: {m.id for m in self._evictable()},
            lambda model: self._models.get(model.id) is model,
        )
        self._reloads: set[asyncio.Task[None]] = set()

    @property
    def loaded(self) -> list[LoadedModel]:
        """Models with a live runner."""
        return [m for m in self._models.values() if m.ready]

    @property
    def busy(self) -> bool:
        """Whether any model is loading or generating."""
        return any(m.loading or m.waiting or (m.ready and not m.idle) for m in self._models.values())

    @property
    def models(self) -> list[LoadedModel]:
        """Models that are loaded, being loaded or have died."""
        return list(self._models.values())

    def get(self, model_id: str) -> LoadedModel | None:
        """The model with this id if it was ever requested."""
        return self._models.get(model_id)

    async def acquire(
        self,
        name: str,
        on_progress: Callable[[float], None] | None = None,
        min_ctx: int = 0,
        ticket: QueueTicket | None = None,
        *,
        loads: bool = True,
        only: str | None = None,
    ) -> LoadedModel:
        """Return a loaded model; load it first if necessary and `loads` is set.

        If the model's context is smaller than `min_ctx` tokens, it grows up to the training context as far as
        memory allows. Otherwise it stays as it is; read `facts.n_ctx`. `ticket` is updated during the load.
        User requests follow the user's routing rules. Background requests pass `only`: the URL of the one server
        that they may go to, or `HERE` for none. This method is the only place that decides this.
        Raises: ModelNotFound, BadModelFile, NotEnoughMemory, RunnerDied, ModelNotLoaded, StaysHere.
        """
        away = self._elsewhere.always(name)
        if away is not None:
            if only is not None and away.server != only:
                raise StaysHere(name, away.server)
            return await self._acquire(away, on_progress, 0, ticket)
        loaded = self._models.get(self._ids.get(name, ""))
        if loaded is not None and loaded.pending:
            if not loads:
                raise ModelNotLoaded(name)
            await self._renewed(loaded)
        elif loaded is not None and loaded.ready and not should_grow(loaded, min_ctx):
            loaded.last_used = time.monotonic()
            relief = await self._relieved(loaded.id, loaded.queued, ticket) if only is None else None
            return relief or loaded
        phases = StartupTimer()
        resolved = await self._source.resolve(name, min_ctx)
        phases.done("place")
        self._ids[name] = resolved.model_id
        model = self._models.get(resolved.model_id)
        if not loads and resolved.engine != REMOTE and (model is None or not model.ready):
            raise ModelNotLoaded(name)
        try:
            return await self._acquire(resolved, on_progress, min_ctx, ticket, phases)
        except NotEnoughMemory:
            relief = await self._relieved(resolved.model_id, None, ticket) if only is None else None
            if relief is None:
                raise
            return relief

    async def acquire_otherwise(self, name: str, exchange: Callable[[LoadSettings], LoadSettings]) -> LoadedModel:
        """Load a model that is not loaded, with settings changed by `exchange`. Raises: as `acquire`."""
        resolved = await self._source.resolve(name)
        changed = msgspec.structs.replace(resolved, settings=exchange(resolved.settings), placement=None)
        return await self._acquire(changed, None, 0, None)

    def announce(self, name: str) -> None:
        """Record for the current request that another server answers it. Raises: InputFault."""
        away, clock = self._elsewhere.always(name), current_clock()
        if away is not None and clock is not None:
            clock.ran_on = away.ran_on

    async def _relieved(self, model_id: str, queued: int | None, ticket: QueueTicket | None) -> LoadedModel | None:
        """The remote model that the user's rules select for a request that would wait or does not fit here.

        Returns None if the other server cannot be reached: the request is then answered locally.
        """
        resolved = self._elsewhere.relief(model_id, queued)
        if resolved is None:
            return None
        try:
            return await self._acquire(resolved, None, 0, ticket)
        except EnvironmentFault as error:
            log.warning("model=%s stays here: %s", model_id, error)
            return None

    async def _acquire(
        self,
        resolved: ResolvedModel,
        on_progress: Callable[[float], None] | None,
        min_ctx: int,
        ticket: QueueTicket | None,
        phases: StartupTimer | None = None,
    ) -> LoadedModel:
        clock = current_clock()
        if clock is not None and resolved.ran_on:
            clock.ran_on = resolved.ran_on
        if resolved.model_id not in self._models:
            await self._ended(resolved.model_id)
        model = self._models.get(resolved.model_id)
        if model is None:
            model = LoadedModel(resolved.model_id, resolved.engine, resolved.settings, ttl_s=self._ttl_s)
            self._models[resolved.model_id] = model
        if self._reaper is None:
            self._reaper = asyncio.create_task(self._reap())
        if ticket is not None:
            ticket.take(model)
        model.waiting += 1
        began = time.monotonic()
        try:
            async with model.lock:
                unloaded = self._models.get(model.id) is not model  # while this request waited
                if not unloaded and should_grow(model, min_ctx):
                    await self._grow_or_stop(model, min_ctx, resolved)
                if not unloaded and not model.ready:
                    model.engine, model.settings = resolved.engine, resolved.settings
                    model.placement = resolved.placement
                    model.chosen, model.pending = resolved.chosen, self._set_since(resolved)
                    model.pinned = model.pinned or resolved.keep
                    model.phases = phases or StartupTimer()
                    model.notes.clear()
                    await while_needed(self._load(model, on_progress), lambda: model.waiting > 1)
                model.last_used = time.monotonic()
        finally:
            model.waiting -= 1
            if clock is not None:
                clock.load_s += time.monotonic() - began
        return await self._acquire(resolved, on_progress, min_ctx, ticket, phases) if unloaded else model

    async def _grow_or_stop(self, model: LoadedModel, min_ctx: int, resolved: ResolvedModel) -> None:
        """Grow the context if it can be resized, else stop an idle runner whose next load would have a larger one.

        The caller holds the model's lock.
        """
        assert model.facts is not None
        assert model.runner is not None
        # A context that cannot be resized has no maximum.
        if model.facts.max_ctx and (limit := growth_limit(model.settings)) > model.facts.n_ctx:
            await self._growth.try_to_grow(model, min(min_ctx, limit))
        elif not model.runner.active_requests and resolved.settings.n_ctx > model.settings.n_ctx:
            model.loading = True  # requests that have the model wait for its next load
            try:
                await uninterrupted(model.runner.stop())
            finally:
                model.loading, model.runner = False, None
                self._admission.release(model.id)

    def _set_since(self, resolved: ResolvedModel) -> tuple[str, ...]:
        """Fields that the user set after this load was placed."""
        if resolved.engine == REMOTE:
            return ()
        return self._source.chosen(resolved.model_id).pending(resolved.chosen)

    async def settings_changed(self, model_id: str) -> Applies:
        """Apply the user's changed settings of a model now, or when the last response ends.

        If only the context grows, it does not wait: it grows in place.
        """
        model = self._models.get(model_id)
        if model is None or not (model.ready or model.loading):
            return "at_load"
        chosen = self._source.chosen(model_id)
        model.pending = chosen.pending(model.chosen)
        if model.pending == ("n_ctx",) and await self._growth.grown_to(model, chosen.n_ctx or 0):
            model.chosen = chosen
            model.pending = self._source.chosen(model_id).pending(chosen)  # set while the context grew
        if not model.pending or await self._renew(model):
            return "now"
        return "when_idle"

    async def _renew(self, model: LoadedModel) -> bool:
        """Unload an idle model with pending settings; its next request loads it with them."""
        return model.idle and await self.unload(model.id)

    async def _renewed(self, model: LoadedModel) -> None:
        """Wait until a model with pending settings is unloaded, after its running responses have ended."""
        while self._models.get(model.id) is model and model.pending and (model.ready or model.loading):
            model.answered.clear()
            if await self._renew(model):
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(model.answered.wait(), REAP_S)

    def _on_answered(self, model: LoadedModel) -> None:
        """Called when a response ends. If settings are pending, reload the model with them; TTL and pin stay."""
        model.answered.set()
        if model.pending and model.idle and self._models.get(model.id) is model:
            task = asyncio.create_task(self.load_again(model))
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)

    async def load_again(self, model: LoadedModel) -> None:
        """Unload an idle model and load it as placement decides now."""
        try:
            if await self._renew(model):
                again = await self.acquire(model.id, only=HERE)
                again.ttl_s, again.pinned = model.ttl_s, again.pinned or model.pinned
        except (TesseraError, OSError) as error:
            log.warning("model=%s is not loaded again: %s", model.id, error)

    async def grow(self, model: LoadedModel, tokens: int, *, exact: bool = False, evicts: bool = True) -> None:
        """Grow a loaded model's context to `tokens`, prompt and response together.

        `exact`: the user requested this size; otherwise more space is added for later tokens. `evicts`: idle models
        may be unloaded for it. Raises: ContextOverflow, ContextCannotGrow.
        """
        await self._growth.grow(model, tokens, exact=exact, evicts=evicts)

    def forget_names(self) -> None:
        """Drop the cached name lookups, because names may have changed their meaning."""
        self._ids.clear()

    async def _load(self, model: LoadedModel, on_progress: Callable[[float], None] | None) -> None:
        now = time.monotonic()
        model.count_crash(now)
        model.facts, model.progress = None, 0.0

        def progress(phase: str, fraction: float) -> None:
            model.phase, model.progress = phase, fraction
            if on_progress is not None:
                on_progress(fraction)

        model.loading = True
        try:
            runner = await self._start_loaded(model, progress)
            if runner.pid is not None:
                self._admission.attach(model.id, runner.pid, runner.buffers)
        except BaseException:
            model.facts = None
            if model.runner is not None:
                model.runner.kill()
            self._admission.release(model.id)
            raise
        finally:
            model.loading = False
        model.loaded_at = time.monotonic()
        log.info("loaded model=%s pid=%s ms=%d", model.id, runner.pid, (model.loaded_at - now) * 1000)

    async def _start_loaded(self, model: LoadedModel, progress: Callable[[str, float], None]) -> Runner:
        """Start a runner and load the model. If that fails, retry with each fallback of the admission."""
        while True:
            await self._admit(model)
            model.phases.done("memory")
            try:
                runner = model.runner = await self._start(
                    SPREAD if model.settings.remotes else model.engine, model.settings.path
                )
                model.phases.done("runner")
                if runner.pid is not None:
                    self._admission.started(model.id, runner.pid)
                try:
                    settings = await self._admission.to_load(model.settings)
                    if self.hooks.watch_rows is not None:
                        settings = self.hooks.watch_rows(model, runner, settings)
                    progress("", 0.0)
                    model.facts = await runner.load(settings, progress)
                    model.loaded_settings = model.settings
                    model.limit_growth()
                    self._growth.follow(model, runner)
                except BaseException:
                    runner.kill()
                    raise
            except (RunnerDied, BadModelFile) as error:
                self._admission.release(model.id)
                fallback = await self._admission.retry(model.id, model.settings, error)
                if fallback is None:
                    log.warning("model=%s cannot be loaded: %s", model.id, error)
                    if (
                        isinstance(error, RunnerDied)
                        and ended_itself(error.exit_code)
                        and not model.settings.devices
                    ):
                        raise NoLoadSurvived(model.settings.path, error) from error
                    raise
                change = sentence(fallback.change)
                log.warning("model=%s could not be loaded (%s); trying: %s", model.id, error, change)
                model.notes.append(f"It failed to load ({error}), so it was tried again: {change}.")
                model.settings = fallback.settings
            else:
                await self._admission.compared(model.settings, model.facts.device_check)
                model.phases.done("load")
                return runner

    async def _admit(self, model: LoadedModel) -> None:
        """Reserve memory for a load; evict idle models, least recently used first.

        Raises: NotEnoughMemory: the model does not fit even without them.
        """
        async with self._admitting:
            while self._max_models is not None:
                local = [m for m in self._models.values() if m is not model and m.engine != REMOTE]
                if sum(m.ready or m.loading for m in local) < self._max_models or not await self._evict():
                    break
            await self._evict_for(partial(self._admission.reserve, model.id, model.settings, model.placement))

    async def _widen(self, model: LoadedModel) -> None:
        """Reserve memory for the context of deterministic requests, if necessary that of idle models.

        Raises: NotEnoughMemory.
        """
        reserve = partial(self._admission.widen, model.id, model.settings)
        with model.in_use():
            try:
                await reserve()
            except NotEnoughMemory:
                async with self._admitting:
                    await self._evict_for(reserve)

    async def _evict_for(self, reserve: Callable[[], Awaitable[None]]) -> None:
        """Call `reserve` until there is memory for it; evict idle models, least recently used first."""
        while True:
            try:
                await reserve()
            except NotEnoughMemory:
                if not await self._evict():
                    raise
            else:
                return

    def _evictable(self) -> list[LoadedModel]:
        return [m for m in self._models.values() if m.idle and not m.pinned and m.engine != REMOTE]

    async def _evict(self) -> bool:
        """Unload the least recently used idle, unpinned model; False if there is none."""
        idle = self._evictable()
        if not idle:
            return False
        chosen = min(idle, key=lambda m: m.last_used)
        log.info("evicting model=%s idle_s=%.0f", chosen.id, time.monotonic() - chosen.last_used)
        return await self.unload(chosen.id)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(REAP_S)
            for model in self.models:
                try:
                    self._release_dead(model)
                    if model.ready and not model.idle:
                        model.last_used = time.monotonic()
                    if model.idle and model.expires_in_s == 0:
                        log.info("unloading model=%s idle for its time to live", model.id)
                        await self.unload(model.id)
                except (TesseraError, OSError) as error:  # for example no disk space: retry in the next round
                    log.warning("model=%s could not be unloaded: %s", model.id, error)
                    continue
                if model.pending and model.idle:  # the settings were changed during the load
                    self._on_answered(model)
                elif model.idle and has_grown(model) and time.monotonic() - model.last_used > SHRINK_AFTER_S:
                    await self._shrink(model)

    def _release_dead(self, model: LoadedModel) -> None:
        """Release the memory of a model whose runner has died; its next request reserves it again."""
        if model.has_died and self._models.get(model.id) is model:
            self._admission.release(model.id)

    async def _shrink(self, model: LoadedModel) -> None:
        async with model.lock:
            try:
                await self._growth.shrink(model)
            except (TesseraError, OSError) as error:  # a request arrived meanwhile: shrink later
                model.last_used = time.monotonic()
                log.info("model=%s keeps its context: %s", model.id, error)

    async def generate(self, model: LoadedModel, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Run a request on a loaded model.

        If the runner dies before the model's first token, or at depth while it reads this prompt, the pool loads
        the model with the next fallback of the admission and restarts the request. Raises: RunnerDied and the
        runner's errors.
        """
        request = msgspec.structs.replace(request, owner=request_owner.get())
        is_gone = self._models.get(model.id) is not model  # unloaded since it was acquired, or about to end
        if is_gone or model.loading or model.runner is None:  # or it is being loaded again
            aside = request.priority == "side"
            model = await self.acquire(model.id, loads=not aside, only=HERE if aside else None)
        if self.hooks.admits is not None:
            self.hooks.admits(model, request)
        try:
            async with aclosing(self._generate(model, request)) as events:
                async for event in events:
                    yield event
        except ContextOverflow as error:
            raise await self._growth.explained(model, error) from None
        finally:
            self._on_answered(model)

    async def _generate(self, model: LoadedModel, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        has_started = False
        while True:
            runner = model.runner
            assert runner is not None
            model.last_used = time.monotonic()
            if request.deterministic and model.widened is not runner:
                await self._widen(model)
                model.widened = runner
            watch = Watch(self.hooks, model, self._admission, request, partial(getattr, runner, "active_requests"))
            try:
                generation = cast("AsyncGenerator[Event, None]", runner.generate(request))
                async with aclosing(generation) as events:
                    async for event in events:
                        watch.add(event)
                        if isinstance(event, Done):
                            event = await watch.done(event)  # noqa: PLW2901 - adds news and the energy
                        if has_started and isinstance(event, Started):
                            continue
                        has_started = True
                        yield event
            except (GeneratorExit, asyncio.CancelledError):
                watch.left()
                raise
            except RunnerDied as error:
                if watch.has_answer or not await self._replaced(model, runner, error):
                    self._release_dead(model)
                    raise
            else:
                break
        model.last_used = time.monotonic()

    async def _replaced(self, model: LoadedModel, dead: Runner, error: RunnerDied) -> bool:
        """Whether the model was reloaded with other settings after its runner died before an answer."""
        depth = getattr(dead, "prefill_depth", 0)
        at_depth = depth >= AT_DEPTH
        if model.proven == model.settings and not at_depth:
            return False
        async with model.lock:
            if self._models.get(model.id) is not model:
                return False
            if model.runner is not dead:
                if model.facts is None:  # the request that replaced it has left during the load
                    await self._load(model, None)
                return model.ready
            self._admission.release(model.id)
            if at_depth:
                fallback = await self._admission.after_prefill_death(model.id, model.settings, depth)
            else:
                fallback = await self._admission.retry(model.id, model.settings, error)
            if fallback is None:
                if not at_depth:
                    model.crashes.extend([time.monotonic()] * MAX_CRASHES)  # all fallbacks have failed
                return False
            change = sentence(fallback.change)
            where = f"{depth} tokens into a prompt" if at_depth else "its first token"
            log.warning("model=%s died at %s (%s); trying: %s", model.id, where, error, change)
            model.notes.append(f"It failed at {where} ({error}), so it was tried again: {change}.")
            model.settings, model.runner = fallback.settings, None
            await self._load(model, None)
        return True

    async def unload(self, model_id: str) -> bool:
        """Stop a model's runner, after its load if it is being loaded; False if it was not loaded.

        Cancelling the caller does not stop the unload.
        """
        model = self._models.pop(model_id, None)
        if model is None or (model.runner is None and not model.loading):
            return False
        task = asyncio.create_task(self._end(model))
        self._ending[task] = model_id
        task.add_done_callback(self._ending.pop)
        await asyncio.shield(task)
        return True

    async def _ended(self, model_id: str) -> None:
        """Wait until earlier runners of a model have ended: a load needs their memory, and their release."""
        while ending := [task for task, owner in self._ending.items() if owner == model_id]:
            await asyncio.wait(ending)

    async def _end(self, model: LoadedModel) -> None:
        async with model.lock:
            runner = model.runner
            if model.ready and runner is not None:
                # Record the memory use; do not delay the unload if this fails, for example without file
                # descriptors.
                with contextlib.suppress(TesseraError, TimeoutError, OSError):
                    stats = await asyncio.wait_for(runner.stats(), STATS_S)
                    if stats.num_contexts == 1:  # only that of the load was predicted
                        await self._admission.unloading(model.id, stats.cache_ram_bytes)
            if runner is not None:
                await runner.stop()
        self._admission.release(model.id)

    async def close(self) -> None:
        """Stop all runners."""
        if self._reaper is not None:
            self._reaper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reaper
            self._reaper = None
        reloads = tuple(self._reloads)
        for task in reloads:  # a load may take minutes
            task.cancel()
        await asyncio.gather(*reloads, return_exceptions=True)
        await asyncio.gather(*(self.unload(model_id) for model_id in list(self._models)))
        await asyncio.gather(*self._ending)

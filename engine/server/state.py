"""State shared by the routes: models, template renderer, access control and counters."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import psutil
from starlette.requests import Request

from devices.errors import TesseraError
from engine.api.stats import Work
from engine.chat.chat_pipeline import Conversations
from engine.chat.structured import ConstraintChecker
from engine.chat.template import TemplateRenderer
from engine.core.errors import InputFault
from engine.core.paths import Paths, user_paths
from engine.core.request_timing import TimeLog
from engine.core.startup_timing import StartupTimer
from engine.core.types import Timings, Usage
from engine.jobs.jobs import JobRegistry
from engine.placement.placer import Placer
from engine.placement.types import PlacementLimits
from engine.pool.loaded_model import LoadedModel
from engine.pool.pool import Pool
from engine.remotes.registry import RemoteRegistry
from engine.remotes.service import Remotes
from engine.runner.load_limits import own_growth_limit
from engine.runner.protocol import LoadSettings, Stats
from engine.server.auth import Access
from engine.server.canary import Canary
from engine.server.models import ServedModels
from engine.server.power import EnergyService, PowerService
from engine.server.recent import RecentRequests
from engine.server.response_store.background import BackgroundJobs
from engine.server.response_store.conversations import ConversationStore
from engine.server.response_store.responses import ResponseStore
from engine.server.speech import Speech, speech_of
from engine.server.streams import StreamRegistry
from engine.server.utilization import Utilization
from engine.upstreams.links import UpstreamLinks
from engine.upstreams.registry import UpstreamRegistry

if TYPE_CHECKING:
    from engine.job_kinds.measure.work import BenchService
    from engine.job_kinds.quantize.tasks import TaskSets
    from engine.library.models_folder import Keep
    from engine.server.documents.service import CollectionService
    from engine.server.metrics import Metrics

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
        """The largest context that a model could have, by growing or with a new load.

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
        except InputFault:  # its external program was removed; the load will report that
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


HISTORY_S: Final = 600
# A runner replies between two steps. One that is busy for longer is counted with the next sample.
_ANSWER_S: Final = 0.5


class WorkHistory:
    """Samples of the server's work, one with each sample of utilization. Only active runners are queried."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._own = psutil.Process()
        self._ring: deque[Work] = deque(maxlen=HISTORY_S)
        self._seen: dict[int, Stats] = {}  # keyed by the runner's process id
        self._rested: dict[int, float] = {}  # last use of a runner at the time it was last seen idle
        self._sums = [0, 0, 0]  # prompt, cached and generated tokens
        self.on_stats: Callable[[int, Stats], None] = lambda _pid, _stats: None

    async def sample(self) -> None:
        """Store a sample of the current work."""
        running = [model for model in self._pool.models if model.runner is not None and model.ready]
        pids = {model.runner.pid for model in running if model.runner is not None}
        self._seen = {pid: stats for pid, stats in self._seen.items() if pid in pids}
        self._rested = {pid: used for pid, used in self._rested.items() if pid in pids}
        for model in running:
            await self._count(model)
        self._ring.append(
            Work(
                at=time.time(),
                active=sum(model.runner.active_requests for model in running if model.runner is not None),
                waiting=sum(model.waiting for model in self._pool.models),
                prompt_tokens=self._sums[0],
                cached_tokens=self._sums[1],
                generated_tokens=self._sums[2],
                rss_bytes=self._own.memory_info().rss + sum(stats.rss_bytes for stats in self._seen.values()),
            )
        )

    def last(self, seconds: int) -> tuple[Work, ...]:
        """Samples of the last `seconds`, oldest first."""
        samples = list(self._ring)
        return tuple(s for s in samples if s.at >= samples[-1].at - seconds)

    async def _count(self, model: LoadedModel) -> None:
        """Add a runner's work since its last query. It is queried once more after it becomes idle."""
        runner = model.runner
        assert runner is not None
        pid = runner.pid
        if pid is None:
            return  # another machine does the work
        works, used = runner.active_requests > 0, model.last_used
        if not works and self._rested.get(pid) == used:
            return
        try:
            now = await asyncio.wait_for(runner.stats(), _ANSWER_S)
        except (TesseraError, TimeoutError):
            return
        if works:
            self._rested.pop(pid, None)
        else:
            self._rested[pid] = used
        self.on_stats(pid, now)
        before = self._seen.get(pid)
        self._seen[pid] = now
        for index, name in enumerate(("prompt_tokens", "cached_tokens", "generated_tokens")):
            self._sums[index] += max(0, getattr(now, name) - (getattr(before, name) if before else 0))


@dataclass
class ServerState:
    """One per application, available as `request.app.state.server`."""

    models: ServedModels
    pool: Pool
    access: Access
    placer: Placer
    paths: Paths = field(default_factory=user_paths)
    jobs: JobRegistry = field(default_factory=JobRegistry)
    renderer: TemplateRenderer = field(default_factory=TemplateRenderer)
    checker: ConstraintChecker = field(default_factory=ConstraintChecker)
    times: TimeLog = field(default_factory=TimeLog)
    start: StartupTimer = field(default_factory=StartupTimer)
    utilization: Utilization | None = None
    history: WorkHistory = field(init=False)
    contexts: ContextSizes = field(init=False)
    energy: EnergyService = field(init=False)
    power: PowerService = field(init=False)
    bench_service: "BenchService | None" = None
    named_tasks: "TaskSets" = field(default_factory=dict)
    keep_models_folder: "Keep" = lambda _: None
    loop: asyncio.AbstractEventLoop | None = None
    links: UpstreamLinks = field(default_factory=lambda: UpstreamLinks(UpstreamRegistry()))
    remotes: Remotes = field(default_factory=lambda: Remotes(RemoteRegistry()))
    recent: RecentRequests = field(default_factory=RecentRequests)
    responses: ResponseStore = field(default_factory=ResponseStore)
    conversation_store: ConversationStore = field(default_factory=ConversationStore)
    streams: StreamRegistry = field(default_factory=StreamRegistry)
    background: BackgroundJobs = field(default_factory=BackgroundJobs)
    canary: Canary | None = None
    conversations: Conversations = field(init=False)
    _collection_service: "CollectionService | None" = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    speech: Speech = field(init=False)

    def __post_init__(self) -> None:
        self.conversations = Conversations(self.renderer, self.checker)
        self.contexts = ContextSizes(self.models, self.pool, self.placer)
        self.pool.hooks.finished = self._finished
        self.history = WorkHistory(self.pool)
        self.speech = speech_of(self.placer, self.models, self.paths.cache)
        self.energy = EnergyService(self.pool, self.utilization, self.placer)
        self.history.on_stats = self.energy.on_stats
        self.power = PowerService(self.pool, self.models, self.energy.ledger, self.paths.config / "power.json")
        self.energy.also = self.power.sampled
        if self.utilization is not None:
            self.utilization.also = self.history.sample
            self.utilization.busy = lambda: self.pool.busy

    def _finished(self, model: LoadedModel, usage: Usage, timings: Timings) -> None:
        self.metrics.finished(model, usage, timings)

    @cached_property
    def metrics(self) -> "Metrics":
        """The counters; imported with the first request that ends, since no first token needs them."""
        from engine.server.metrics import Metrics

        return Metrics(self.utilization)

    @property
    def has_collections(self) -> bool:
        """Whether the user has document collections, judged by the configuration file."""
        return (self.paths.config / "collections.json").exists()

    async def collection_service(self) -> "CollectionService":
        """The collection service; imported and opened on first use."""
        async with self._opening:
            if self._collection_service is None:
                self._collection_service = await asyncio.to_thread(
                    self._open_collections, asyncio.get_running_loop()
                )
            return self._collection_service

    def _open_collections(self, loop: asyncio.AbstractEventLoop) -> "CollectionService":
        from engine.server.documents.service import CollectionService

        service = CollectionService(self.paths, self.pool, self.models, loop)
        service.start()
        return service

    async def close_collections(self) -> None:
        """Stop all work on collections."""
        if self._collection_service is not None:
            await asyncio.to_thread(self._collection_service.close)


def server_state(request: Request) -> ServerState:
    """The state of the application that serves this request."""
    state = request.app.state.server
    assert isinstance(state, ServerState)
    return state

"""GET /tessera/v1/stats and /requests: speed, queue, memory and cache over time, and the latest requests."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Annotated, Final

import msgspec
import psutil
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from devices.errors import TesseraError
from engine.api.models import LoadedModel
from engine.api.requests import RecentActivity
from engine.api.stats import ModelStats, RequestTimes, Stats, UsageSamples, WorkSamples
from engine.core.request_timing import MAX_ENTRIES
from engine.core.sendable import encoded
from engine.pool.loaded_model import LoadedModel as PooledModel
from engine.runner.protocol import Stats as RunnerStats
from engine.server.manage.models import describe
from engine.server.msgspec_routes import TypedRoute
from engine.server.openai.errors import SHAPE
from engine.server.sse import EventStream
from engine.server.state import ServerState, server_state
from engine.server.utilization import HISTORY_S

router = APIRouter(prefix="/tessera/v1", tags=["management"], route_class=TypedRoute)

# A busy runner replies between two steps. One that takes longer than this is reported without numbers.
ANSWER_S: Final = 1.0


@router.get("/stats")
async def stats(
    request: Request,
    *,
    interval: Annotated[float, Query(ge=0.1, le=60)] = 1.0,
    once: Annotated[bool, Query()] = False,
) -> Response:
    """Server-sent events every `interval` seconds; `once` sends one event and ends."""
    return EventStream(_events(server_state(request), interval, once=once), SHAPE)


async def _events(state: ServerState, interval: float, *, once: bool) -> AsyncGenerator[bytes, None]:
    earlier: dict[str, tuple[float, RunnerStats]] = {}
    while True:
        now = await snapshot(state, earlier)
        yield b"event: stats\ndata: " + encoded(now) + b"\n\n"
        if once:
            return
        await asyncio.sleep(interval)


async def snapshot(state: ServerState, earlier: dict[str, tuple[float, RunnerStats]]) -> Stats:
    """Current statistics. Speeds are since the last call with the same `earlier`, which is updated."""
    models = []
    for model in state.pool.models:
        numbers = await _query_runner(model)
        now = time.monotonic()
        row = _model(describe(model), numbers, now, earlier.get(model.id))
        runner = model.facts.phases if model.facts is not None else ()
        models.append(msgspec.structs.replace(row, load=model.phases.all(), runner=runner))
        if numbers is not None:
            earlier[model.id] = (now, numbers)
    return Stats(
        time=time.time(),
        models=tuple(models),
        use=state.metrics.use(),
        tok_s=round(sum(m.tok_s for m in models), 2),
        active=sum(m.active for m in models),
        waiting=sum(m.queued + m.waiting for m in models),
        rss_bytes=psutil.Process().memory_info().rss + sum(m.rss_bytes for m in models),
        memory_available_bytes=psutil.virtual_memory().available,
        utilization=state.utilization.newest() if state.utilization else None,
        energy=state.energy.snapshot(),
        start=state.start.all(),
    )


@router.get("/stats/utilization")
async def utilization(request: Request, seconds: Annotated[int, Query(ge=1, le=HISTORY_S)] = 120) -> UsageSamples:
    """Utilization and power of the devices, oldest first: one sample per second; while idle, one in 5 s."""
    ring = server_state(request).utilization
    return UsageSamples(samples=ring.last(seconds) if ring else ())


@router.get("/stats/history")
async def history(request: Request, seconds: Annotated[int, Query(ge=1, le=HISTORY_S)] = 180) -> WorkSamples:
    """Requests, tokens and memory of the server in the last seconds, oldest first."""
    return WorkSamples(samples=server_state(request).history.last(seconds))


@router.get("/stats/requests")
async def requests(request: Request, limit: Annotated[int, Query(ge=1, le=MAX_ENTRIES)] = 50) -> RequestTimes:
    """Timings of the latest requests, newest first: seconds per phase."""
    return RequestTimes(requests=tuple(server_state(request).times.newest(limit)))


async def _query_runner(model: PooledModel) -> RunnerStats | None:
    if not model.ready or model.runner is None:
        return None
    try:
        return await asyncio.wait_for(model.runner.stats(), ANSWER_S)
    except (TesseraError, TimeoutError):
        return None


def _model(
    model: LoadedModel, stats: RunnerStats | None, now: float, earlier: tuple[float, RunnerStats] | None
) -> ModelStats:
    fields = msgspec.structs.asdict(model)
    if stats is None:
        return ModelStats(**fields)
    tok_s = prompt_tok_s = 0.0
    if earlier is not None and now > earlier[0]:
        elapsed, before = now - earlier[0], earlier[1]
        tok_s = round(max(0, stats.generated_tokens - before.generated_tokens) / elapsed, 2)
        read = stats.prompt_tokens - stats.cached_tokens - before.prompt_tokens + before.cached_tokens
        prompt_tok_s = round(max(0, read) / elapsed, 2)
    fields["active"] = stats.active
    return ModelStats(
        **fields,
        prompt_tokens=stats.prompt_tokens,
        generated_tokens=stats.generated_tokens,
        cached_tokens=stats.cached_tokens,
        cache_hit_frac=round(stats.cached_tokens / stats.prompt_tokens, 4) if stats.prompt_tokens else 0.0,
        queued=stats.waiting,
        kv_cells_used=stats.kv_cells_used,
        kv_cells_total=stats.kv_cells_total,
        rss_bytes=stats.rss_bytes,
        cache_ram_bytes=stats.cache_ram_bytes,
        cache_disk_bytes=stats.cache_disk_bytes,
        tok_s=tok_s,
        prompt_tok_s=prompt_tok_s,
        experts=stats.experts,
    )


@router.get("/requests")
async def recent_activity(request: Request) -> RecentActivity:
    """The latest requests that ran a model, and the connected programs; newest first, in memory only."""
    return server_state(request).recent.snapshot()

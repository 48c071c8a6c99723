"""/tessera/v1/jobs: watch, pause, resume, finish and cancel long-running jobs."""

import asyncio
from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.api.jobs import Job, Jobs
from engine.core.sendable import encoded
from engine.jobs.jobs import JobRegistry
from engine.server.msgspec_routes import TypedRoute
from engine.server.openai.errors import SHAPE
from engine.server.sse import EventStream
from engine.server.state import server_state

router = APIRouter(prefix="/tessera/v1/jobs", tags=["jobs"], route_class=TypedRoute)


@router.get("")
async def list_jobs(request: Request) -> Jobs:
    """All jobs, newest first."""
    return Jobs(jobs=_registry(request).jobs())


@router.get("/events")
async def all_events(request: Request) -> Response:
    """Server-sent events: the current state of each job, then every change, until the client disconnects."""
    return EventStream(_events(_registry(request), None), SHAPE)


@router.get("/{job}")
async def show_job(request: Request, job: str) -> Job:
    """One job."""
    return _registry(request).get(job)


@router.get("/{job}/events")
async def job_events(request: Request, job: str) -> Response:
    """Server-sent events of one job; the stream ends with the job."""
    _registry(request).get(job)
    return EventStream(_events(_registry(request), job), SHAPE)


@router.post("/{job}/pause")
async def pause(request: Request, job: str) -> Job:
    """Pause a job; it keeps its partial results."""
    return _registry(request).pause(job)


@router.post("/{job}/resume")
async def resume(request: Request, job: str) -> Job:
    """Resume a paused or failed job."""
    return await asyncio.to_thread(_registry(request).resume, job)


@router.post("/{job}/finish")
async def finish(request: Request, job: str) -> Job:
    """End a job with its best result so far. Possible once its `progress.partial.usable` is not empty."""
    return _registry(request).finish(job)


@router.post("/{job}/cancel")
async def cancel(request: Request, job: str) -> Job:
    """Cancel a job and drop its partial results."""
    return await asyncio.to_thread(_registry(request).cancel, job)


async def _events(registry: JobRegistry, job_id: str | None) -> AsyncGenerator[bytes, None]:
    with registry.subscribe(job_id) as subscription:
        async for job in subscription.changes():
            yield b"event: job\ndata: " + encoded(job) + b"\n\n"


def _registry(request: Request) -> JobRegistry:
    return server_state(request).jobs

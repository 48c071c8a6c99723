"""Background responses: they run without a connection and can be polled, streamed from any event, and cancelled."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, Protocol

from engine.core.errors import InputFault
from engine.core.ownership import first_to_go, may_see, request_owner

# Maximum number of running responses, and number and bytes of finished ones whose events are still stored.
MAX_RUNNING: Final = 64
MAX_RUNNING_OF_A_KEY: Final = 32
MAX_FINISHED: Final = 64
MAX_FINISHED_BYTES: Final = 64 << 20
_ENDED: Final = frozenset({"completed", "incomplete", "failed", "cancelled"})


class Items(Protocol):
    """A response that is being built."""

    response: dict[str, Any]

    def snapshot(self) -> dict[str, Any]:
        """The response so far."""
        ...


class Job:
    """One background response. `events` are its server-sent events, in order of sequence number."""

    def __init__(self, items: Items) -> None:
        self.items = items
        self.owner = request_owner.get()
        self.events: list[bytes] = []
        self.size_bytes = 0
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether all events have been published."""
        return self.items.response["status"] in _ENDED and (self.task is None or self.task.done())

    def publish(self, chunk: bytes) -> None:
        """Publish events; a chunk may contain several."""
        self.events += [event + b"\n\n" for event in chunk.split(b"\n\n") if event]
        self.size_bytes += len(chunk)
        self.wake()

    def wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """The events after number `after`, existing and future ones."""
        at = after + 1
        while True:
            news = self._news
            while at < len(self.events):
                yield self.events[at]
                at += 1
            if self.ended:
                return
            await news.wait()


class BackgroundJobs:
    """The running background responses and the latest finished ones."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    def find(self, response_id: str) -> Job | None:
        """The response with that id if it runs or ran in the background."""
        job = self._jobs.get(response_id)
        return job if job is not None and may_see(job.owner) else None

    def refuse_unfinished(self, response_id: str) -> None:
        """Raises: InputFault: the response still runs, or was cancelled, so that nothing can follow it."""
        param = "previous_response_id"
        job = self.find(response_id)
        status = "completed" if job is None else job.items.response["status"]
        if status not in _ENDED:
            raise InputFault(f"The response {response_id} is still {status}; wait for its end.", param)
        if status == "cancelled":
            raise InputFault(f"The response {response_id} was cancelled; continue the one before it.", param)

    def start(self, items: Items, chunks: AsyncGenerator[bytes, None]) -> Job:
        """Start a response from `chunks`, its events. Raises: InputFault: too many are running."""
        running = [job.owner for job in self._jobs.values() if not job.ended]
        owner = request_owner.get()
        if len(running) >= MAX_RUNNING or (owner and running.count(owner) >= MAX_RUNNING_OF_A_KEY):
            raise InputFault(
                f"{running.count(owner)} answers are being made in the background for you, {len(running)} in all; "
                f"the limits are {MAX_RUNNING_OF_A_KEY if owner else MAX_RUNNING} and {MAX_RUNNING}. Wait for one.",
                "background",
            )
        job = self._jobs[str(items.response["id"])] = Job(items)
        items.response |= {"status": "queued", "background": True}
        job.task = asyncio.create_task(self._run(job, chunks))
        self._bound()
        return job

    def _bound(self) -> None:
        """Delete finished responses beyond the limits, first those of the owner with most."""
        finished = {response_id: job for response_id, job in self._jobs.items() if job.ended}
        size = sum(job.size_bytes for job in finished.values())
        while finished and (len(finished) > MAX_FINISHED or size > MAX_FINISHED_BYTES):
            response_id = first_to_go(finished, MAX_FINISHED_BYTES // MAX_FINISHED)
            size -= finished.pop(response_id).size_bytes
            del self._jobs[response_id]

    async def _run(self, job: Job, chunks: AsyncGenerator[bytes, None]) -> None:
        try:
            async with aclosing(chunks) as source:
                async for chunk in source:
                    job.publish(chunk)
        finally:
            if job.items.response["status"] not in _ENDED:
                job.items.response["status"] = "cancelled"
            asyncio.get_running_loop().call_soon(job.wake)  # after the task is done

    async def cancel(self, response_id: str) -> dict[str, Any]:
        """Cancel a response; a finished one is unchanged. Raises: InputFault: it does not run in the background."""
        job = self.find(response_id)
        if job is None:
            raise InputFault("Only an answer that runs in the background can be cancelled.", "response_id")
        if job.task is not None and not job.task.done():
            job.task.cancel()
            await asyncio.gather(job.task, return_exceptions=True)
        return job.items.snapshot()

    def forget(self, response_id: str) -> None:
        """Stop a response and delete its events."""
        job = self._jobs.pop(response_id, None)
        if job is not None and job.task is not None:
            job.task.cancel()

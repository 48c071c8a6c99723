"""Changes of jobs, as one who follows them gets them."""

import threading
from collections.abc import AsyncIterator, Callable

from engine.jobs.job_types import Job


class Subscription:
    """Changes of one job or of all, newest state of each, in order; nothing is ever blocked by a slow reader."""

    def __init__(self, job_id: str | None) -> None:
        self.job_id = job_id
        self._latest: dict[str, Job] = {}
        self._ready = threading.Condition()
        self._wake: Callable[[], None] | None = None
        self._over = False

    def push(self, job: Job) -> None:
        """Called by the registry."""
        if self.job_id not in {None, job.id}:
            return
        with self._ready:
            self._latest[job.id] = job
            self._ready.notify_all()
            if self._wake:
                self._wake()

    def take(self, timeout_s: float = 0.0) -> list[Job]:
        """States that are new since the last call; waits up to `timeout_s` for the first."""
        with self._ready:
            self._ready.wait_for(lambda: bool(self._latest), timeout=timeout_s)
            taken = list(self._latest.values())
            self._latest.clear()
        return taken

    def end(self) -> None:
        """Called by the registry: what was pushed is the last."""
        with self._ready:
            self._over = True
            if self._wake:
                self._wake()

    async def changes(self) -> AsyncIterator[Job]:
        """The same for asyncio; ends with a single job that ended, or when no more come."""
        import asyncio  # noqa: PLC0415 the terminal has no use for it

        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(event.set)

        self._wake = wake
        while True:
            over = self._over  # looked at first: what is pushed before the end is told
            for job in self.take():
                yield job
                if self.job_id is not None and job.ended:
                    return
            if over:
                return
            await event.wait()
            event.clear()

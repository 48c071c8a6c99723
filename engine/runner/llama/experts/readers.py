"""Threads that read experts: what is waited for first, then what will probably be asked for."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.runner.llama.experts.expert_layout import FileChanged
from engine.runner.llama.experts.page_swap import NoPages

Part = Callable[..., None]


@dataclass(slots=True, eq=False)
class ReadJob:
    """The read of one expert, by layer and number, in place of `victim`, and whether somebody waits for it.

    `parts` get the number of the reader they run on. `prefetch`: nobody asked for it yet.
    """

    expert: tuple[int, int]
    parts: Sequence[Part]
    prefetch: bool = False
    victim: tuple[int, int] | None = None
    left: int = field(init=False)
    urgent: bool = False
    begun: bool = False

    def __post_init__(self) -> None:
        self.left = len(self.parts)


class Readers:
    """A few threads. `failure` is the first thing that went wrong; nothing is read after it."""

    def __init__(self, count: int, done: Callable[[ReadJob], None]) -> None:
        """`done` is called behind the last part of each job, on the thread that read it."""
        self._done = done
        self._news = threading.Condition()
        self._urgent: deque[tuple[ReadJob, Part]] = deque()
        self._ahead: deque[ReadJob] = deque()
        self._ended = False
        self.failure: Exception | None = None
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"experts-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def idle(self) -> bool:
        """Nothing waits to be read."""
        return not self._urgent and not self._ahead

    def ahead(self, jobs: Iterable[ReadJob]) -> None:
        """Read these when nothing is waited for."""
        with self._news:
            self._ahead.extend(jobs)
            self._news.notify_all()

    def cancel(self, which: Callable[[ReadJob], bool]) -> list[ReadJob]:
        """Of what is to be read ahead and is not begun, do not read those; returns them."""
        with self._news:
            gone = [job for job in self._ahead if which(job)]
            for job in gone:
                self._ahead.remove(job)
        return gone

    def last_ahead(self) -> ReadJob | None:
        """Do not read what would be read last of all; returns it."""
        with self._news:
            return self._ahead.pop() if self._ahead else None

    def wait_for(self, jobs: list[ReadJob]) -> None:
        """Read these before anything else, and return when they are read. Raises: `failure`."""
        with self._news:
            for job in jobs:
                job.urgent = True
                if not job.begun:
                    if job in self._ahead:
                        self._ahead.remove(job)
                    self._begin(job)
            self._news.notify_all()
            while any(job.left for job in jobs) and self.failure is None:
                self._news.wait()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """End the threads; what is being read is read to its end."""
        with self._news:
            self._ended = True
            self._urgent.clear()
            self._ahead.clear()
            self._news.notify_all()
        for thread in self._threads:
            thread.join()

    def _begin(self, job: ReadJob) -> None:
        job.begun = True
        self._urgent.extend((job, part) for part in job.parts)

    def _next(self) -> tuple[ReadJob, Part] | None:
        with self._news:
            while True:
                if self._ended or self.failure is not None:
                    return None
                if not self._urgent and self._ahead:
                    self._begin(self._ahead.popleft())
                if self._urgent:
                    return self._urgent.popleft()
                self._news.wait()

    def _work(self, room: int) -> None:
        while (queued := self._next()) is not None:
            job, part = queued
            try:
                part(room=room)
            except (OSError, FileChanged, NoPages) as error:
                with self._news:
                    self.failure = self.failure or error
                    self._news.notify_all()
                return
            with self._news:
                job.left -= 1
                if not job.left:
                    self._done(job)
                    if job.urgent:
                        self._news.notify_all()

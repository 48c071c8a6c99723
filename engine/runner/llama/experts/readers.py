"""Threads that read experts: what is waited for first, then what will probably be asked for."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.runner.llama.experts.pages import NoPages
from engine.runner.llama.experts.places import FileChanged

Part = Callable[..., None]


@dataclass(slots=True, eq=False)
class Reading:
    """One expert that is read, by layer and number, in place of `giver`, and whether somebody waits for it.

    `parts` get the number of the reader they run on. `guess`: nobody asked for it yet.
    """

    expert: tuple[int, int]
    parts: Sequence[Part]
    guess: bool = False
    giver: tuple[int, int] | None = None
    left: int = field(init=False)
    urgent: bool = False
    begun: bool = False

    def __post_init__(self) -> None:
        self.left = len(self.parts)


class Readers:
    """A few threads. `failure` is the first thing that went wrong; nothing is read after it."""

    def __init__(self, count: int, done: Callable[[Reading], None]) -> None:
        """`done` is called behind the last part of each reading, on the thread that read it."""
        self._done = done
        self._news = threading.Condition()
        self._urgent: deque[tuple[Reading, Part]] = deque()
        self._ahead: deque[Reading] = deque()
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

    def ahead(self, readings: Iterable[Reading]) -> None:
        """Read these when nothing is waited for."""
        with self._news:
            self._ahead.extend(readings)
            self._news.notify_all()

    def taken_back(self, which: Callable[[Reading], bool]) -> list[Reading]:
        """Of what is to be read ahead and is not begun, those are not read."""
        with self._news:
            gone = [reading for reading in self._ahead if which(reading)]
            for reading in gone:
                self._ahead.remove(reading)
        return gone

    def last_ahead(self) -> Reading | None:
        """What would be read last of all is not read."""
        with self._news:
            return self._ahead.pop() if self._ahead else None

    def wait_for(self, readings: list[Reading]) -> None:
        """Read these before anything else, and return when they are read. Raises: `failure`."""
        with self._news:
            for reading in readings:
                reading.urgent = True
                if not reading.begun:
                    if reading in self._ahead:
                        self._ahead.remove(reading)
                    self._begin(reading)
            self._news.notify_all()
            while any(reading.left for reading in readings) and self.failure is None:
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

    def _begin(self, reading: Reading) -> None:
        reading.begun = True
        self._urgent.extend((reading, part) for part in reading.parts)

    def _next(self) -> tuple[Reading, Part] | None:
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
        while (job := self._next()) is not None:
            reading, part = job
            try:
                part(room=room)
            except (OSError, FileChanged, NoPages) as error:
                with self._news:
                    self.failure = self.failure or error
                    self._news.notify_all()
                return
            with self._news:
                reading.left -= 1
                if not reading.left:
                    self._done(reading)
                    if reading.urgent:
                        self._news.notify_all()

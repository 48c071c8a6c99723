"""The phases of a job: what they report, what ends them, how long they took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from devices.errors import Cancelled
from quantize.job.bar import Bar
from quantize.measurements import CancelCheck, OnProgress, Progress


class Phases:
    """`seconds` by phase, for as long as each took in all."""

    def __init__(self, on_progress: OnProgress, cancelled: CancelCheck) -> None:
        self.on_progress = Bar(on_progress)
        self.cancelled = cancelled
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase. Raises: Cancelled, before it."""
        if self.cancelled():
            raise Cancelled
        self.on_progress(Progress(phase=name, done=0.0, total=1.0))
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started, 3)

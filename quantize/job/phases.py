"""The phases of a job: progress, cancellation and duration."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from devices.errors import Cancelled
from quantize.measurements import CancelCheck, OnProgress, Progress


class JobPhases:
    """Runs the phases of a job; `seconds` holds the total duration of each phase by name."""

    def __init__(self, on_progress: OnProgress, cancelled: CancelCheck) -> None:
        self.on_progress = JobProgress(on_progress)
        self.cancelled = cancelled
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase. Raises: Cancelled, before the phase starts."""
        if self.cancelled():
            raise Cancelled
        self.on_progress(Progress(phase=name, done=0.0, total=1.0))
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started, 3)

    def counted(self, name: str, total: int) -> Callable[[int], None]:
        """A function that takes the size of each part of a phase's work in this process, and reports the sum.

        It raises Cancelled.
        """
        done = 0

        def count(size: int) -> None:
            nonlocal done
            if self.cancelled():
                raise Cancelled
            done += size
            self.on_progress(Progress(phase=name, done=done, total=total))

        return count


# Worker phases within a phase of the job: (job phase, start, fraction). Measured: log-archive.md, "Quantization in
# minutes" ("Phases").
_INSIDE: dict[str, tuple[str, float, float]] = {
    "smooth": ("measure", 0.0, 0.02),
    "survey": ("measure", 0.0, 0.02),
    "moments": ("measure", 0.02, 0.36),
    "errors": ("measure", 0.38, 0.18),
    "alpha": ("measure", 0.56, 0.44),
    "prepare": ("convert", 0.0, 1.0),
    "exact": ("read", 0.0, 1.0),
}
# Weight of the forecast against the pace so far, as a fraction of the whole job.
_TRUST_FRAC = 0.1


class JobProgress:
    """Forwards progress, with the finished fraction of the whole job and the remaining seconds.

    `expect` sets the phases; without it, progress is forwarded without a total. `usable` describes the job's best
    file so far.
    """

    usable: str = ""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._phases: dict[str, float] = {}
        self._done = 0.0
        self._started = time.monotonic()

    def expect(self, phases: Mapping[str, float]) -> None:
        """Set the expected seconds of each phase, in order."""
        self._phases = dict(phases)

    def __call__(self, progress: Progress) -> None:
        """Report the progress of the whole job; it never decreases."""
        progress = msgspec.structs.replace(progress, usable=self.usable)
        total = sum(self._phases.values())
        if total <= 0:  # without a forecast, a worker's remaining seconds cover only its own phase
            self._on_progress(msgspec.structs.replace(progress, left_s=None))
            return
        phase, first, part = _INSIDE.get(progress.phase, (progress.phase, 0.0, 1.0))
        if phase in self._phases:
            within = first + part * min(1.0, progress.done / progress.total if progress.total else 0.0)
            before = sum(s for p, s in list(self._phases.items())[: list(self._phases).index(phase)])
            self._done = max(self._done, before + within * self._phases[phase])
        trust = _TRUST_FRAC * total
        pace = (time.monotonic() - self._started + trust) / (self._done + trust)
        left_s = (total - self._done) * pace
        self._on_progress(msgspec.structs.replace(progress, share=self._done / total, left_s=left_s))

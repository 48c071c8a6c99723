"""One bar for a whole job: how much of its forecast time is behind it, and what is left at the pace so far."""

import time
from collections.abc import Mapping

import msgspec

from quantize.measurements import OnProgress, Progress

# Phases of the workers inside a phase of the job, with their part of it.
# Measured: docs/log.md, "Quantization in minutes" ("Phases").
_INSIDE: dict[str, tuple[str, float, float]] = {
    "smooth": ("measure", 0.0, 0.02),
    "survey": ("measure", 0.0, 0.02),
    "moments": ("measure", 0.02, 0.36),
    "errors": ("measure", 0.38, 0.18),
    "alpha": ("measure", 0.56, 0.44),
    "prepare": ("convert", 0.0, 1.0),
}
# What the forecast weighs against the pace so far, as a share of the whole.
_TRUST_FRAC = 0.1


class Bar:
    """Passes progress on with the share of the whole and the seconds left; `expect` says what is to come."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._phases: dict[str, float] = {}
        self._done = 0.0
        self._started = time.monotonic()

    def expect(self, phases: Mapping[str, float]) -> None:
        """Seconds by phase, in the order in which they come."""
        self._phases = dict(phases)

    def __call__(self, progress: Progress) -> None:
        """Tell how far the whole is; it never goes back."""
        total = sum(self._phases.values())
        if total <= 0:  # what a worker says is left is of its own phase
            self._on_progress(msgspec.structs.replace(progress, left_s=None))
            return
        phase, first, part = _INSIDE.get(progress.phase, (progress.phase, 0.0, 1.0))
        if phase in self._phases:
            within = first + part * min(1.0, progress.done / progress.total if progress.total else 0.0)
            before = sum(s for p, s in list(self._phases.items())[: list(self._phases).index(phase)])
            self._done = max(self._done, before + within * self._phases[phase])
        trust = _TRUST_FRAC * total
        pace = (time.monotonic() - self._started + trust) / (self._done + trust)
        left = (total - self._done) * pace
        self._on_progress(msgspec.structs.replace(progress, share=self._done / total, left_s=left))

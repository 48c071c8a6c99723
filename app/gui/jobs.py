"""Server jobs (downloads, quantization, verification), followed through the server's event stream."""

import logging
import time
from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer, Signal

from app.client import Routes
from app.gui.app_context import Models
from app.gui.background import Background, StreamJob
from app.gui.reasons import error_message
from engine.api.jobs import Job

log = logging.getLogger(__name__)
_AGAIN_MS = 3000


class Jobs(QObject):
    """All jobs by id, updated from the server's events while it is reachable."""

    changed = Signal(object)  # Job
    finished = Signal(object)
    failed = Signal(str)

    def __init__(self, api: Routes, background: Background, models: Models, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._api, self._background = api, background
        self._models = models
        self._stream: StreamJob | None = None
        self.by_id: dict[str, Job] = {}
        self._since = time.time()  # jobs that ended earlier count as history
        self._again = QTimer(self, singleShot=True, interval=_AGAIN_MS)
        self._again.timeout.connect(self.follow)
        models.reachable_changed.connect(self._on_reachable)
        if models.reachable:
            self.follow()

    def follow(self) -> None:
        """Subscribe to the server's job events."""
        if self._stream is None and self._models.reachable:
            self._stream = self._background.stream(
                self._api.job_events,
                self._on_jobs,
                lambda _: self._on_end(),
                self._on_end,
                self,
            )

    def stop(self) -> None:
        """Unsubscribe from the events."""
        self._again.stop()
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    def do(self, job_id: str, action: str) -> None:
        """Pause, resume or cancel a job."""
        self._background.run(
            lambda: self._api.job_action(job_id, action),
            lambda job: self._on_jobs([job]),
            lambda error: self.failed.emit(error_message(error)),
            self,
        )

    def started(self, job: Job, on_ended: Callable[[Job], object] | None = None) -> None:
        """Add a job that was just started, and emit `changed` with its newest known state.

        It may be final, as `finished` may come before the reply to the request. Then `on_ended` gets it.
        """
        self._on_jobs([job])
        newest = self.by_id[job.id]
        if newest is not job:  # events arrived before the reply to the request
            self.changed.emit(newest)
        if on_ended is not None and newest.ended:
            on_ended(newest)

    def _on_jobs(self, jobs: list[Job]) -> None:
        for job in {job.id: job for job in jobs}.values():
            before = self.by_id.get(job.id)
            # The reply to a request may arrive after the job's first events.
            if before is not None and before.updated_at > job.updated_at:
                continue
            self.by_id[job.id] = job
            self.changed.emit(job)
            is_new = job.updated_at >= self._since if before is None else not before.ended
            if job.ended and is_new:
                self.finished.emit(job)
                if job.state == "done":
                    self._models.refresh()

    def _on_end(self, error: Exception | None = None) -> None:
        if error is not None:
            log.debug("job events ended: %s", error)
        self._stream = None
        self._again.start()

    def _on_reachable(self, reachable: bool) -> None:
        if reachable:
            self.follow()

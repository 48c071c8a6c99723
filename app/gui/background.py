"""The one door from the window to background work. Results always arrive on the main thread."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import shiboken6
from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from app.client import Stream

log = logging.getLogger(__name__)
T = TypeVar("T")
# Half the gap a person notices as stutter; several tokens share one repaint. Source: style reference, rule 4.
FLUSH_MS = 33
# At the end, work gets so long to end by itself: a server on this computer answers most questions in less.
GRACE_S = 2.0


class Job(QObject):
    """One piece of work under way. `cancel` drops its callbacks and closes its stream."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.cancelled = threading.Event()
        self.on_done: Callable[[Any], object] | None = None
        self.on_error: Callable[[Exception], object] | None = None

    def cancel(self) -> None:
        """Forget the result. The work itself ends when it next looks."""
        self.cancelled.set()

    def finish(self, result: object, error: Exception | None) -> None:
        """Deliver the result; called on the main thread."""
        if not self.cancelled.is_set():
            if error is not None:
                if self.on_error is None:
                    log.error("background work failed", exc_info=error)
                else:
                    self.on_error(error)
            elif self.on_done is not None:
                self.on_done(result)
        self.deleteLater()


class StreamJob(Job):
    """A job that delivers lists of values every `FLUSH_MS` while it runs."""

    def __init__(self, parent: QObject, on_values: Callable[[list[Any]], object]) -> None:
        super().__init__(parent)
        self._on_values = on_values
        self._buffer: deque[Any] = deque()
        self._source: Stream[Any] | None = None
        self._lock = threading.Lock()
        self._timer = QTimer(self)
        self._timer.setInterval(FLUSH_MS)
        self._timer.timeout.connect(self.flush)
        self._timer.start()

    def consume(self, open_source: Callable[[], Stream[Any]]) -> None:
        """Read the source to its end; called on a worker thread."""
        source = open_source()
        with self._lock:
            self._source = source
        try:
            if not self.cancelled.is_set():
                for value in source:
                    self._buffer.append(value)
                    if self.cancelled.is_set():
                        break
        finally:
            source.close()

    def cancel(self) -> None:
        """Stop the source and deliver nothing more."""
        super().cancel()
        self._timer.stop()
        with self._lock:
            source = self._source
        if source is not None:
            # Closing may wait for the network: never on the main thread.
            threading.Thread(target=source.close, name="close-stream").start()

    @Slot()
    def flush(self) -> None:
        """Deliver what has arrived."""
        values: list[Any] = []
        while self._buffer:
            values.append(self._buffer.popleft())
        if values and not self.cancelled.is_set():
            self._on_values(values)

    def finish(self, result: object, error: Exception | None) -> None:
        """Deliver what has arrived, then that it ended."""
        self._timer.stop()
        self.flush()
        super().finish(result, error)


class _Results(QObject):
    """Results on their way from the workers to the main thread.

    A worker emits no job's signal: the main thread may be destroying that job's parent at the very moment, and a
    signal of a half-destroyed object brings the whole program down. Nobody destroys this one while `put` runs.
    """

    _came = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[tuple[Job, object, Exception | None]] = deque()
        self._came.connect(self._deliver, Qt.ConnectionType.QueuedConnection)

    def put(self, job: Job, result: object, error: Exception | None) -> None:
        """From any thread."""
        self._waiting.append((job, result, error))
        self._came.emit()

    @Slot()
    def _deliver(self) -> None:
        if self._waiting:
            job, result, error = self._waiting.popleft()
            if shiboken6.isValid(job):
                job.finish(result, error)


class Background(QObject):
    """A pool of worker threads, joined at the end."""

    def __init__(self, parent: QObject | None = None, workers: int = 6) -> None:
        super().__init__(parent)
        self._results = _Results()
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="background")
        self._streams: set[StreamJob] = set()
        self._at_close: list[Callable[[], object]] = []
        self._at_last: list[Callable[[], object]] = []
        self._running: set[Future[None]] = set()

    def at_close(self, end: Callable[[], object]) -> None:
        """Have this called before the workers are waited for: it ends what would keep them busy."""
        self._at_close.append(end)

    def at_last(self, end: Callable[[], object]) -> None:
        """Have this called when workers are still busy GRACE_S later: whatever they wait for, it ends."""
        self._at_last.append(end)

    def run(
        self,
        work: Callable[[], T],
        on_done: Callable[[T], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        parent: QObject | None = None,
    ) -> Job:
        """Run `work` on a worker; then one of the callbacks on the main thread, unless `parent` died."""
        job = Job(parent or self)
        job.on_done, job.on_error = on_done, on_error
        self._submit(job, work)
        return job

    def watch(
        self,
        future: Future[T],
        on_done: Callable[[T], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        parent: QObject | None = None,
    ) -> Job:
        """Bring the result of a future (the store's) to the main thread."""
        job = Job(parent or self)
        job.on_done, job.on_error = on_done, on_error
        results = self._results

        def report(done: Future[T]) -> None:
            error = done.exception()
            if error is None or isinstance(error, Exception):
                results.put(job, None if error else done.result(), error)

        future.add_done_callback(report)
        return job

    def stream(
        self,
        open_source: Callable[[], Stream[T]],
        on_values: Callable[[list[T]], object],
        on_done: Callable[[None], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        parent: QObject | None = None,
    ) -> StreamJob:
        """Read a stream on a worker and deliver its values in batches on the main thread."""
        job = StreamJob(parent or self, on_values)
        job.on_done, job.on_error = on_done, on_error
        self._streams.add(job)
        job.destroyed.connect(lambda: self._streams.discard(job))
        self._submit(job, lambda: job.consume(open_source))
        return job

    def close(self) -> None:
        """Cancel streams and wait for the workers; what has not begun by then never does."""
        for end in self._at_close:
            end()
        for job in list(self._streams):
            if shiboken6.isValid(job):
                job.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if wait(tuple(self._running), GRACE_S).not_done:
            for end in self._at_last:
                end()
        self._pool.shutdown(wait=True)

    def _submit(self, job: Job, work: Callable[[], Any]) -> None:
        future = self._pool.submit(self._guard, job, work)
        self._running.add(future)
        future.add_done_callback(self._running.discard)

    def _guard(self, job: Job, work: Callable[[], Any]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - carried to the main thread, where it is shown or raised
            self._results.put(job, None, error)
        else:
            self._results.put(job, result, None)

"""Runs work on background threads and delivers the results on the main thread."""

import gc
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import shiboken6
from PySide6.QtCore import QElapsedTimer, QObject, Qt, QTimer, Signal, Slot

from app.client import Stream

log = logging.getLogger(__name__)
T = TypeVar("T")
# Half the shortest pause that users notice as stutter. Several tokens share one repaint.
# Source: style reference, rule 4.
FLUSH_MS = 33
# Time for running work to finish at close. A local server answers most requests sooner.
GRACE_S = 2.0
# Interval of garbage collection, and the number of collections with work to do before a full one: a full collection
# takes about 50 ms with all pages open.
COLLECT_MS = 1000
COMPLETE_AFTER = 60


class Job(QObject):
    """Running background work. `cancel` drops its callbacks and closes its stream."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.cancelled = threading.Event()
        self.ended = False
        self.on_done: Callable[[Any], object] | None = None
        self.on_error: Callable[[Exception], object] | None = None

    def cancel(self) -> None:
        """Discard the result. The work ends when it next checks `cancelled`."""
        self.cancelled.set()

    def finish(self, result: object, error: Exception | None) -> None:
        """Call the callback with the result or the error. Main thread only."""
        self.ended = True
        if not self.cancelled.is_set():
            if error is not None and self.on_error is not None:
                self.on_error(error)
            elif error is None and self.on_done is not None:
                self.on_done(result)
        self.deleteLater()


class StreamJob(Job):
    """A job that delivers batches of values, at most one every `FLUSH_MS`.

    `came` is called on the worker thread after a value for which no batch is planned yet. It must let the main
    thread call `flush_soon`. A stream that is silent for hours, such as that of the jobs, wakes nothing.
    """

    def __init__(
        self, parent: QObject, on_values: Callable[[list[Any]], object], came: "Callable[[StreamJob], object]"
    ) -> None:
        super().__init__(parent)
        self._on_values = on_values
        self._came = came
        self._planned = False
        self._flushed = QElapsedTimer()
        self._buffer: deque[Any] = deque()
        self._source: Stream[Any] | None = None
        self._lock = threading.Lock()
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self.flush)

    def consume(self, open_source: Callable[[], Stream[Any]]) -> None:
        """Read the source to its end. Runs on a worker thread."""
        source = open_source()
        with self._lock:
            self._source = source
        try:
            if not self.cancelled.is_set():
                for value in source:
                    self._buffer.append(value)
                    if not self._planned:  # `flush` resets it before it reads the buffer, so no value is left there
                        self._planned = True
                        self._came(self)
                    if self.cancelled.is_set():
                        break
        finally:
            source.close()

    def cancel(self) -> None:
        """Close the source and deliver no more values."""
        super().cancel()
        self._timer.stop()
        with self._lock:
            source = self._source
        if source is not None:
            # Closing may wait for the network: do not do it on the main thread.
            threading.Thread(target=source.close, name="close-stream").start()

    def flush_soon(self) -> None:
        """Deliver the buffered values now, or `FLUSH_MS` after the last batch."""
        if not (self._timer.isActive() or self.cancelled.is_set()):
            since_ms = self._flushed.elapsed() if self._flushed.isValid() else FLUSH_MS
            self._timer.start(max(0, FLUSH_MS - since_ms))

    @Slot()
    def flush(self) -> None:
        """Deliver the buffered values."""
        self._planned = False
        self._flushed.start()
        values: list[Any] = []
        while self._buffer:
            values.append(self._buffer.popleft())
        if values and not self.cancelled.is_set():
            self._on_values(values)

    def finish(self, result: object, error: Exception | None) -> None:
        """Deliver the buffered values, then the result."""
        self._timer.stop()
        self.flush()
        super().finish(result, error)


class _Results(QObject):
    """Passes results from worker threads to the main thread.

    Workers must not emit a job's signal: the main thread may be destroying the job's parent, and a signal of a
    half-destroyed object crashes the program. This object is never destroyed while `put` runs.
    """

    failed = Signal(object)  # the error of work without an error callback
    _came = Signal()
    _values_came = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[tuple[Job, object, Exception | None]] = deque()
        self._streams: deque[StreamJob] = deque()
        self._came.connect(self._deliver, Qt.ConnectionType.QueuedConnection)
        self._values_came.connect(self._flush, Qt.ConnectionType.QueuedConnection)

    def values_came(self, job: StreamJob) -> None:
        """Let the main thread deliver a stream's values soon. Thread-safe."""
        self._streams.append(job)
        self._values_came.emit()

    def put(self, job: Job, result: object, error: Exception | None) -> None:
        """Queue a result. Thread-safe."""
        self._waiting.append((job, result, error))
        self._came.emit()

    @Slot()
    def _deliver(self) -> None:
        if self._waiting:
            job, result, error = self._waiting.popleft()
            if shiboken6.isValid(job):
                job.finish(result, error)
            if error is not None and job.on_error is None and not job.cancelled.is_set():
                log.error("background work failed", exc_info=error)
                self.failed.emit(error)

    @Slot()
    def _flush(self) -> None:
        if self._streams:
            job = self._streams.popleft()
            if shiboken6.isValid(job):
                job.flush_soon()


class _GarbageCollector(QTimer):
    """Python's garbage collector, on the main thread only.

    By default it runs on whichever thread allocates, and a widget that it deletes there while Qt uses it crashes
    the program. `close` restores the default.
    """

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._was_enabled = gc.isenabled()
        gc.disable()
        self.setInterval(COLLECT_MS)
        self.timeout.connect(self._look)
        self.start()

    def close(self) -> None:
        self.stop()
        if self._was_enabled:
            gc.enable()

    @Slot()
    def _look(self) -> None:
        young, looks, _ = gc.get_count()
        if young > gc.get_threshold()[0]:
            gc.collect(2 if looks >= COMPLETE_AFTER else 0)  # in Python 3.14, 1 passes over young garbage


class Background(QObject):
    """A pool of worker threads, joined at close. While it is open, garbage is collected on the main thread.

    `failed` carries the error of work without an error callback. The window reports it.
    """

    def __init__(self, parent: QObject | None = None, workers: int = 6) -> None:
        super().__init__(parent)
        self._results = _Results()
        self.failed = self._results.failed
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="background")
        self._streams: WeakSet[StreamJob] = WeakSet()
        self._at_close: list[Callable[[], object]] = []
        self._at_last: list[Callable[[], object]] = []
        self._running: set[Future[None]] = set()
        self._newest: WeakKeyDictionary[QObject, dict[str, Job]] = WeakKeyDictionary()
        self._garbage = _GarbageCollector(self)

    def at_close(self, end: Callable[[], object]) -> None:
        """Register a callback that `close` calls before it waits for the workers.

        It should end long-running work.
        """
        self._at_close.append(end)

    def at_last(self, end: Callable[[], object]) -> None:
        """Register a callback that `close` calls if workers still run after `GRACE_S`. It should unblock them."""
        self._at_last.append(end)

    def run(
        self,
        work: Callable[[], T],
        on_done: Callable[[T], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        parent: QObject | None = None,
        newest: str = "",
    ) -> Job:
        """Run `work` on a worker, then one callback on the main thread, unless `parent` was destroyed.

        Workers end in any order. `newest` names what is loaded for `parent`: a result that comes after a newer run
        with that name began is dropped, so that an old result never replaces a newer one.
        """
        job = Job(parent or self)
        job.on_done, job.on_error = on_done, on_error
        if newest:
            self.drop(parent or self, newest)
            self._newest.setdefault(parent or self, {})[newest] = job
        self._submit(job, work)
        return job

    def is_loading(self, parent: QObject, newest: str) -> bool:
        """True if the result of a run with this name is pending.

        A poll then waits; otherwise it would drop that result.
        """
        job = self._newest.get(parent, {}).get(newest)
        return job is not None and not (job.ended or job.cancelled.is_set())

    def drop(self, parent: QObject, newest: str) -> None:
        """Drop the pending result of the run with this name, if there is one: it is no longer needed."""
        job = self._newest.get(parent, {}).pop(newest, None)
        if job is not None:
            job.cancel()

    def watch(
        self,
        future: Future[T],
        on_done: Callable[[T], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        parent: QObject | None = None,
    ) -> Job:
        """Deliver the result of a future (for example the store's) on the main thread."""
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
        job = StreamJob(parent or self, on_values, self._results.values_came)
        job.on_done, job.on_error = on_done, on_error
        self._streams.add(job)
        self._submit(job, lambda: job.consume(open_source))
        return job

    def close(self) -> None:
        """Cancel streams and wait for the workers. Queued work is dropped."""
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
        self._garbage.close()

    def _submit(self, job: Job, work: Callable[[], Any]) -> None:
        future = self._pool.submit(self._guard, job, work)
        self._running.add(future)
        future.add_done_callback(self._running.discard)

    def _guard(self, job: Job, work: Callable[[], Any]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - passed to the main thread, which shows or logs it
            self._results.put(job, None, error)
        else:
            self._results.put(job, result, None)

"""Runs long work (downloads, quantizing, verifying): start, watch, pause, resume and cancel jobs by id.

A job has a kind and JSON parameters. Each process registers the work of every kind once. Jobs that were running
when a process died become paused and can be resumed.
"""

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar, overload

import msgspec

from devices.errors import TesseraError
from devices.msgspec_lock import learned
from engine.core.errors import Cancelled, InputFault, exhausted, fact_of
from engine.core.json_store import JsonStore
from engine.jobs.job_types import Fault, Job, JobKind, JobState, Progress
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because


class Subscription:
    """Changes of one job or of all jobs: the newest state of each, in order. A slow reader blocks nothing."""

    def __init__(self, job_id: str | None) -> None:
        self.job_id = job_id
        self._latest: dict[str, Job] = {}
        self._ready = threading.Condition()
        self._wake: Callable[[], None] | None = None
        self._over = False

    def push(self, job: Job) -> None:
        """Add a state; called by the registry."""
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
            jobs = list(self._latest.values())
            self._latest.clear()
        return jobs

    def end(self) -> None:
        """End the subscription after the states pushed so far; called by the registry."""
        with self._ready:
            self._over = True
            if self._wake:
                self._wake()

    async def changes(self) -> AsyncIterator[Job]:
        """Like `take`, for asyncio; ends when a single job has ended, or when no more changes come."""
        import asyncio

        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(event.set)

        self._wake = wake
        while True:
            over = self._over  # read it first, so that states pushed before the end are not lost
            for job in self.take():
                yield job
                if self.job_id is not None and job.ended:
                    return
            if over:
                return
            await event.wait()
            event.clear()


__all__ = ["Fault", "Job", "JobContext", "JobKind", "JobRegistry", "JobState", "Paused", "Progress"]

_log = logging.getLogger(__name__)
# Jobs that have not ended; each has a thread.
MAX_JOBS: Final = 200
_KEPT = 200
_SPEED_WINDOW_S = 5.0
_LEAST_SAMPLES = 2  # a speed needs two points
_STALLED_S = 5.0
# How long a closing server waits for a job to pause, and for one that is storing its result.
_PAUSE_S: Final = 10.0
_STORE_S: Final = 60.0


class Paused(TesseraError):
    """Raised inside a job's work when it has to stop and keep its progress."""

    code = "paused"


class JobContext:
    """The interface of a job's work to its job: progress, pause and cancel. Also usable without a registry."""

    def __init__(self, on_progress: Callable[[Progress], None] | None = None) -> None:
        self._overrides: Literal["paused", "cancelled", "finished"] | None = None
        self._changed = threading.Condition()
        self._on_progress = on_progress
        self._samples: deque[tuple[float, int]] = deque()
        self._moved_at = time.monotonic()
        self.storing = False

    def store(self) -> None:
        """Report that the work is storing its result from now on; a closing server waits for it."""
        self.storing = True

    def ask(self, overrides: Literal["paused", "cancelled", "finished"]) -> None:
        """Request the work to stop; it stops at its next check. `finished`: with the result that it has so far."""
        with self._changed:
            if self._overrides != "cancelled":
                self._overrides = overrides
            self._changed.notify_all()

    def check(self) -> None:
        if self._overrides == "paused":
            raise Paused
        if self._overrides == "cancelled":
            raise Cancelled

    @property
    def stopping(self) -> bool:
        """Whether `check` would raise."""
        return self._overrides is not None

    @property
    def cancelling(self) -> bool:
        """Whether the job is being cancelled; an error of the work does not matter then."""
        return self._overrides == "cancelled"

    @property
    def finishing(self) -> bool:
        """Whether the job is to end with the result that it has so far."""
        return self._overrides == "finished"

    def wait(self, seconds: float) -> None:
        """Sleep, but wake and raise immediately when a stop is requested."""
        with self._changed:
            self._changed.wait_for(lambda: self._overrides is not None, timeout=seconds)
        self.check()

    def report(
        self,
        phase: str,
        done: int,
        total: int,
        unit: str = "bytes",
        note: str | Reason = "",
        partial: dict[str, Any] | None = None,
        left_s: float | None = None,
    ) -> None:
        """Report progress. Speed, and `left_s` by default, come from the last five seconds."""
        now = time.monotonic()
        if not self._samples or done < self._samples[-1][1]:
            self._samples.clear()
            self._moved_at = now
        elif done > self._samples[-1][1]:
            self._moved_at = now
        self._samples.append((now, done))
        while self._samples[0][0] < now - _SPEED_WINDOW_S and len(self._samples) > _LEAST_SAMPLES:
            self._samples.popleft()
        (then, before), span = self._samples[0], now - self._samples[0][0]
        del then
        stalled = now - self._moved_at >= _STALLED_S
        speed = 0.0 if stalled or span <= 0 else (done - before) / span
        eta = (total - done) / speed if speed > 0 and total >= done else None
        if left_s is not None:
            eta = left_s
        progress = Progress(
            phase=phase,
            done=done,
            total=total,
            unit=unit,
            note=sentence(note),
            note_detail=note if isinstance(note, Reason) else None,
            partial=partial or {},
            speed=speed,
            eta_s=eta,
            stalled=stalled,
        )
        if self._on_progress:
            self._on_progress(progress)


P = TypeVar("P")
# Result of a job: a struct of the API, or plain values.
Result = msgspec.Struct | dict[str, Any] | None
Work = Callable[[P, JobContext], Result]


def params_of(kind: type[P]) -> Callable[[dict[str, Any]], P]:
    """A reader that converts a job's stored parameters to this struct."""
    return lambda stored: msgspec.convert(stored, learned(kind))


class _Kind(NamedTuple):
    work: Work[Any]
    read: Callable[[dict[str, Any]], Any]
    slots: "_Slots"


class _Slots:
    """Limits the number of concurrent jobs of a kind; the others wait in start order."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._line: list[JobContext] = []
        self._changed = threading.Condition()

    def join(self, control: JobContext) -> None:
        with self._changed:
            self._line.append(control)

    def acquire(self, control: JobContext) -> bool:
        """Wait for a slot; returns False if a stop was requested meanwhile."""
        with self._changed:
            while not control.stopping and not (self._free and self._line[0] is control):
                self._changed.wait(0.2)
            self._line.remove(control)
            acquired = not control.stopping
            self._free -= acquired
            self._changed.notify_all()
        return acquired

    def release(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify_all()


class JobRegistry:
    """All jobs of this process, stored in one file. At most `parallel` jobs of a kind run at the same time."""

    def __init__(self, file: Path | None = None) -> None:
        self._saved_jobs = JsonStore(file, list[Job], list)
        self._jobs: dict[str, Job] = {}
        # jobs started, changed or deleted by this process; the others belong to another server
        self._touched: set[str] = set()
        self._controls: dict[str, JobContext] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._kinds: dict[JobKind, _Kind] = {}
        self._subscriptions: list[Subscription] = []
        self._ends = False
        self._lock = threading.RLock()
        self._load()

    @overload
    def register(self, kind: JobKind, work: Work[dict[str, Any]], parallel: int = 1) -> None: ...

    @overload
    def register(
        self, kind: JobKind, work: Work[P], parallel: int = 1, *, read: Callable[[dict[str, Any]], P]
    ) -> None: ...

    def register(
        self, kind: JobKind, work: Work[Any], parallel: int = 1, *, read: Callable[[dict[str, Any]], Any] = dict
    ) -> None:
        """Set the work of jobs of `kind`; `read` converts the stored parameters.

        The work raises TesseraError (or Cancelled, Paused).
        """
        self._kinds[kind] = _Kind(work, read, _Slots(parallel))

    def start(self, kind: JobKind, title: str, params: msgspec.Struct | dict[str, Any]) -> Job:
        """Start a job. Raises: InputFault: the kind is not registered, or too many jobs have not ended."""
        if kind not in self._kinds:
            raise InputFault(because("no_jobs_of_kind", job=kind.value), "kind")
        if sum(not job.ended for job in self.jobs()) >= MAX_JOBS:
            raise InputFault(because("too_many_jobs", most=MAX_JOBS), "kind")
        now = time.time()
        job = Job(
            id=f"{kind.value}-{uuid.uuid4().hex[:10]}",
            kind=kind,
            title=title,
            params=msgspec.to_builtins(params),
            state="queued",
            created_at=now,
            updated_at=now,
        )
        return self._begin(job)

    def resume(self, job_id: str) -> Job:
        """Continue a paused or failed job. Raises: InputFault: it is neither, or unknown."""
        with self._lock:
            job = self.get(job_id)
            if job.state not in {"paused", "failed"}:
                raise InputFault(because("job_cannot_resume", id=job_id, state=job.state), "id")
            thread = self._threads.get(job_id)
            if thread is not None and thread.is_alive():
                thread.join(5)
            if job.kind not in self._kinds:
                raise InputFault(because("no_jobs_of_kind", job=job.kind.value), "kind")
            return self._begin(job)

    def pause(self, job_id: str) -> Job:
        """Request a job to stop and keep its progress. Raises: InputFault: it is not running."""
        return self._ask(job_id, "paused")

    def finish(self, job_id: str) -> Job:
        """Request a job to end with its result so far. Raises: InputFault: it has no usable one."""
        with self._lock:
            job = self.get(job_id)
            if job.state != "running" or not job.progress.partial.get("usable"):
                raise InputFault(because("job_without_result", id=job_id), "id")
            return self._ask(job_id, "finished")

    def cancel(self, job_id: str) -> Job:
        """Request a job to stop and discard its progress.

        For a paused job, the work is called once more to clean up.
        """
        with self._lock:
            job = self.get(job_id)
            if job.state in {"paused", "failed"}:
                if job.kind not in self._kinds:
                    self._update(job_id, state="cancelled")
                    return self.get(job_id)
                control = JobContext()
                control.ask("cancelled")
                self._launch(job, control)
                return self.get(job_id)
        return self._ask(job_id, "cancelled")

    def get(self, job_id: str) -> Job:
        """One job. Raises: InputFault: unknown."""
        with self._lock:
            job = self._jobs.get(job_id)
        if job is None:
            raise InputFault(because("no_job", id=job_id), "id")
        return job

    def jobs(self) -> tuple[Job, ...]:
        """All jobs, newest first."""
        with self._lock:
            return tuple(reversed(self._jobs.values()))  # by start order, because the clock may have been set back

    def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """Block until the job has ended or paused."""
        thread = self._threads.get(job_id)
        if thread is not None:
            thread.join(timeout_s)
        return self.get(job_id)

    @contextmanager
    def subscribe(self, job_id: str | None = None) -> Iterator[Subscription]:
        """Subscribe to changes, starting with the current state of each job."""
        subscription = Subscription(job_id)
        with self._lock:
            self._subscriptions.append(subscription)
            for job in self._jobs.values():
                subscription.push(job)
            if self._ends and job_id is None:
                subscription.end()
        try:
            yield subscription
        finally:
            with self._lock:
                self._subscriptions.remove(subscription)

    def end_following(self) -> None:
        """End subscriptions to all jobs, now and in future.

        Otherwise they would end only with the server, which waits for them.
        """
        with self._lock:
            self._ends = True
            for subscription in self._subscriptions:
                if subscription.job_id is None:
                    subscription.end()

    def close(self) -> None:
        """Pause running jobs, wait for them and save the list."""
        with self._lock:
            controls, threads = dict(self._controls), dict(self._threads)
        for control in controls.values():
            control.ask("paused")
        began = time.monotonic()
        for job_id, thread in threads.items():
            thread.join(max(0.0, began + _PAUSE_S - time.monotonic()))
            if job_id in controls and controls[job_id].storing:
                thread.join(max(0.0, began + _STORE_S - time.monotonic()))

    def _ask(self, job_id: str, overrides: Literal["paused", "cancelled", "finished"]) -> Job:
        with self._lock:
            job = self.get(job_id)
            control = self._controls.get(job_id)
            # The thread of a paused job may not have ended yet.
            if control is None or job.ended or job.state == "paused":
                raise InputFault(because("job_is", id=job_id, state=job.state), "id")
            control.ask(overrides)
        return self.get(job_id)

    def _begin(self, job: Job) -> Job:
        with self._lock:
            control = JobContext(lambda progress: self._update(job.id, progress=progress))
            self._store(job.changed(state="queued", error=None))
            self._launch(job, control)
        return self.get(job.id)

    def _launch(self, job: Job, control: JobContext) -> None:
        self._controls[job.id] = control
        kind = self._kinds[job.kind]
        kind.slots.join(control)
        thread = threading.Thread(target=self._run, args=(job.id, control, kind), name=f"job {job.id}")
        self._threads[job.id] = thread
        thread.start()

    def _run(self, job_id: str, control: JobContext, kind: _Kind) -> None:
        job = self.get(job_id)
        try:
            has_slot = kind.slots.acquire(control)
            try:
                if has_slot:
                    self._update(job_id, state="running")
                result = msgspec.to_builtins(kind.work(kind.read(job.params), control), enc_hook=str)
            finally:
                if has_slot:
                    kind.slots.release()
        except Paused:
            self._update(job_id, state="paused")
        except Cancelled:
            self._update(job_id, state="cancelled")
        except TesseraError as error:
            detail = fact_of(error)
            facts = msgspec.to_builtins(error.facts() | ({"detail": detail} if detail else {}), enc_hook=str)
            blame: Literal["request", "machine"] = "request" if isinstance(error, InputFault) else "machine"
            fault = Fault(code=error.code, message=str(error), facts=facts, blame=blame)
            _log.warning("job failed id=%s code=%s", job_id, error.code)
            self._fail(job_id, control, fault)
        except Exception as error:  # noqa: BLE001 a bug in one job must be logged and must not end the others
            self._fail(job_id, control, _unforeseen(job_id, error))
        else:
            self._update(job_id, state="done", result=result)
        finally:
            with self._lock:
                if self._controls.get(job_id) is control:
                    del self._controls[job_id]

    def _fail(self, job_id: str, control: JobContext, fault: Fault) -> None:
        """Mark a job as failed, or as cancelled if it was being cancelled.

        A failed job fails at the same place again when its work is called to clean up.
        """
        if control.cancelling:
            self._update(job_id, state="cancelled")
        else:
            self._update(job_id, state="failed", error=fault)

    def _update(self, job_id: str, **changes: Any) -> None:
        with self._lock:
            job = self._jobs[job_id].changed(**changes)
            self._store(job, to_disk="state" in changes)

    def _store(self, job: Job, *, to_disk: bool = True) -> None:
        self._jobs[job.id] = job
        self._touched.add(job.id)
        for subscription in self._subscriptions:
            subscription.push(job)
        if to_disk:
            self._save()

    def _save(self) -> None:
        ended = [j for j in self.jobs() if j.ended]
        for job in ended[_KEPT:]:
            del self._jobs[job.id]
            self._threads.pop(job.id, None)
            self._controls.pop(job.id, None)
            self._touched.add(job.id)
        try:
            self._saved_jobs.change(self._merged)
        except OSError as error:
            _log.warning("the list of jobs could not be saved: %s", error)

    def _merged(self, stored: list[Job]) -> list[Job]:
        """This process's changes merged into the file, which another server of this user may have changed."""
        jobs = {job.id: job for job in stored if job.id in self._jobs or job.id not in self._touched}
        jobs.update((job_id, job) for job_id, job in self._jobs.items() if job_id in self._touched)
        return list(jobs.values())

    def _load(self) -> None:
        for job in self._saved_jobs.get():
            # Newer than all earlier progress, so that subscribers take this as its latest state.
            interrupted = job.state in {"queued", "running"}
            self._jobs[job.id] = job.changed(state="paused") if interrupted else job


def _unforeseen(job_id: str, error: Exception) -> Fault:
    """The fault of a job that ended with an unexpected error: lack of system resources, or a bug."""
    lack = exhausted(error)
    if lack is not None:
        _log.warning("job failed id=%s, missing: %s: %s", job_id, lack.what, error)
        return Fault(code=lack.code, message=str(lack), facts=msgspec.to_builtins(lack.facts()))
    _log.error("job crashed id=%s", job_id, exc_info=error)
    return Fault(code="bug", message=type(error).__name__, blame="program")

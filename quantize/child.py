"""Running a measuring task in a child process of its own: native code may die there without taking us along."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import msgspec

from devices.child import spawn
from devices.child_command import child_command
from devices.environment import without_secrets
from devices.errors import Cancelled, EnvironmentFault, InputFault, TesseraError
from devices.msgspec_lock import learned
from quantize.errors import DiskFull
from quantize.measurements import CancelCheck, OnProgress, Progress, encode
from quantize.reproducible_math import environment_of

T = TypeVar("T")

_STDERR_LINES: Final = 40
_POLL_S: Final = 0.1
_KILLED: Final = -9  # subprocess's word for SIGKILL


class ChildDied(EnvironmentFault):
    """The child that did `task` ended without an answer; `exit_code` and its last lines of stderr say why."""

    code = "child_died"

    def __init__(self, task: str, exit_code: int, stderr_tail: tuple[str, ...]) -> None:
        last = stderr_tail[-1] if stderr_tail else "it said nothing"
        if exit_code == _KILLED:
            super().__init__(f"the {task} process was killed: a system without free memory does so")
        else:
            super().__init__(f"the {task} process ended with code {exit_code}: {last}")
        self.task = task
        self.exit_code = exit_code
        self.stderr_tail = stderr_tail


# The name of a task and its request.
Task = tuple[str, Mapping[str, Any] | msgspec.Struct]
RunTasks = Callable[[list[Task], Callable[[int, Progress], None], CancelCheck], list[Any]]


class _Worker:
    """A process that does one task at a time.

    Its environment gives numpy one thread and lets ggml's threads sleep while they wait: they would starve each
    other and, on a busy machine, take eight times as long (docs/log.md, "GPTQ rounding").
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._child: Child | None = None
        one = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        one["OMP_WAIT_POLICY"] = "passive"
        one |= environment
        self.process: subprocess.Popen[str] = spawn(
            child_command("quantize.job.worker"),
            without_secrets({**one, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._readers = [threading.Thread(target=run) for run in (self._read_events, self._read_stderr)]

    def begin(self, child: "Child", order: bytes) -> None:
        """Do this task; its events are the child's."""
        first, self._child = self._child is None, child
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it died at once; its exit code tells the rest
            self.process.stdin.write(order.decode() + "\n")
            self.process.stdin.flush()
        if first:
            for reader in self._readers:
                reader.start()

    def close(self) -> None:
        """End it now and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(OSError):  # unsent input of a child that is gone
                    pipe.close()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        assert self._child is not None
        for line in self.process.stdout:
            self._child.take(json.loads(line))
        self._child.all_sent.set()

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.stderr.append(line.rstrip())


# With more memory than this after a task, a process ends with it, and the next one gets a fresh one.
_LITTLE_BYTES = 256 << 20
# Processes that did a task and wait for the next one; None: each ends with its task.
_REUSED: ContextVar[list[_Worker] | None] = ContextVar("reused", default=None)


@contextmanager
def reused_workers() -> Iterator[None]:
    """Within it, tasks of this thread are done by processes of earlier ones where those hold little memory.

    A start takes a fifth of a second, ggml's tables for types below three bits up to fifteen, and a job has a dozen
    tasks. Within another, the other's processes are used, and they outlive the inner one.
    """
    if _REUSED.get() is not None:
        yield
        return
    reused: list[_Worker] = []
    token = _REUSED.set(reused)
    try:
        yield
    finally:
        _REUSED.reset(token)
        for worker in reused:
            worker.close()


def _worker(environment: dict[str, str]) -> _Worker:
    reused = _REUSED.get() or []
    for worker in reused:
        if worker.environment == environment and worker.process.poll() is None:
            reused.remove(worker)
            return worker
    return _Worker(environment)


def _on_gpu(request: Mapping[str, Any] | msgspec.Struct) -> bool:
    """Whether a task, or one within, has layers on a GPU: its driver gives all memory back only at the end."""
    for part in ("round", "measure"):
        request = getattr(request, part, request)
    return getattr(request, "gpu_layers", 0) > 0


class Child:
    """One running task, in a process that does nothing else meanwhile."""

    def __init__(self, task: str, request: Mapping[str, Any] | msgspec.Struct) -> None:
        self.task = task
        self.result: Any = None
        self.error: TesseraError | None = None
        self.progress: deque[Progress] = deque(maxlen=64)
        self.all_sent = threading.Event()
        self._answered = self._goes_on = self._given_back = False
        self._worker: _Worker = _worker(environment_of(request))
        self._reused = _REUSED.get()
        little = 0 if self._reused is None or _on_gpu(request) else _LITTLE_BYTES
        self._worker.begin(self, encode({"task": task, "request": request, "goes_on_below_bytes": little}))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._worker.process.pid

    def take(self, event: dict[str, Any]) -> None:
        """What its process says, in the thread that listens."""
        if event["kind"] == "progress":
            self.progress.append(msgspec.convert(event["value"], learned(Progress)))
            return
        if event["kind"] == "result":
            self.result = event["value"]
        else:
            self.error = rebuilt(event["value"])
        self._answered, self._goes_on = True, event["goes_on"]
        if self._goes_on:
            self.all_sent.set()

    def poll(self) -> bool:
        """Whether it has ended. Raises: the task's own error. ChildDied: it ended without an answer."""
        if self._goes_on:
            self._give_back()
        else:
            try:  # one that closed its output is about to end
                self._worker.process.wait(_POLL_S if self.all_sent.is_set() else 0)
            except subprocess.TimeoutExpired:
                return False
            self._worker.close()
        if self.error is not None:
            raise self.error
        if not self._answered:
            raise ChildDied(self.task, self._worker.process.returncode, tuple(self._worker.stderr))
        return True

    def kill(self) -> None:
        """End it now and wait until it is gone, if it has not ended yet."""
        if self._goes_on:
            self._give_back()
        else:
            self._worker.close()

    def _give_back(self) -> None:
        if self._reused is not None and not self._given_back:
            self._given_back = True
            self._reused.append(self._worker)

    def wait(self, seconds: float) -> None:
        """Until its output ends, or so long."""
        self.all_sent.wait(seconds)


def run_task(
    task: str, request: Mapping[str, Any] | msgspec.Struct, on_progress: OnProgress, cancelled: CancelCheck
) -> Any:
    """Run one task to its end and return its answer (plain JSON values).

    Raises: Cancelled: `cancelled()` became true; the child is gone. ChildDied. Whatever the task raised.
    """
    return run_tasks([(task, request)], lambda _index, progress: on_progress(progress), cancelled)[0]


def answer_of(
    kind: type[T],
    task: str,
    request: Mapping[str, Any] | msgspec.Struct,
    on_progress: OnProgress,
    cancelled: CancelCheck,
) -> T:
    """The answer of `run_task` as what it is."""
    return msgspec.convert(run_task(task, request, on_progress, cancelled), learned(kind))


def run_tasks(
    tasks: list[Task],
    on_progress: Callable[[int, Progress], None],
    cancelled: CancelCheck,
) -> list[Any]:
    """Run tasks side by side, one child each; `on_progress(index, progress)`. The first error ends them all."""
    children = [Child(task, request) for task, request in tasks]
    try:
        running = set(range(len(children)))
        while running:
            if cancelled():
                raise Cancelled
            for index in sorted(running):
                child = children[index]
                ended = child.poll()
                while child.progress:
                    on_progress(index, child.progress.popleft())
                if ended:
                    running.discard(index)
            if running:  # a job starts hundreds of children, so the end of one is not only looked for
                children[min(running)].wait(_POLL_S)
    finally:
        for child in children:
            child.kill()
    return [child.result for child in children]


class Executor(msgspec.Struct, frozen=True):
    """Where the tasks of single groups and tensors are done: `run` does what `run_tasks` does.

    They are cut into at most `parts`; None: as many as the request has threads, whose cores they share.
    """

    run: RunTasks
    parts: int | None = None


HERE: Final = Executor(run_tasks)


def described(error: TesseraError | OSError) -> dict[str, Any]:
    """An error as plain values, for another process; `rebuilt` makes it an error again."""
    if isinstance(error, TesseraError):
        family = "input" if isinstance(error, InputFault) else "environment"
        return {"code": error.code, "family": family, "message": str(error), "facts": _plain(error.facts())}
    if error.errno == errno.ENOSPC:
        full = DiskFull(str(error.filename or ""), 0, 0)
        return {"code": full.code, "family": "environment", "message": str(full), "facts": full.facts()}
    return {"code": EnvironmentFault.code, "family": "environment", "message": str(error), "facts": {}}


def _plain(facts: dict[str, object]) -> dict[str, object]:
    return {k: v if isinstance(v, str | int | float | bool | None) else str(v) for k, v in facts.items()}


def rebuilt(fault: dict[str, Any]) -> TesseraError:
    """The error that another process met, as this one knows it: of the same class where that is loaded here."""
    family = InputFault if fault["family"] == "input" else EnvironmentFault
    own = (k for k in _descendants(TesseraError) if k.__module__.startswith("quantize."))  # unique there
    kind = next((k for k in own if k.__dict__.get("code") == fault["code"]), family)
    error = kind.__new__(kind)
    error.args = (fault["message"],)
    vars(error).update(fault["facts"])
    if kind is family:
        error.code = fault["code"]
    return error


def _descendants(kind: type[TesseraError]) -> Iterator[type[TesseraError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _descendants(child)

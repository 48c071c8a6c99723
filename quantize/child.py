"""Runs measuring tasks in child processes, so that a crash of native code does not end the parent process."""

import contextlib
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
from quantize.errors import NO_SPACE, NotWritable
from quantize.measurements import CancelCheck, OnProgress, Progress, encode
from quantize.reproducible_math import environment_of

T = TypeVar("T")

_STDERR_LINES: Final = 40
_POLL_S: Final = 0.1
_KILLED: Final = -9  # subprocess's return code for SIGKILL


class ChildDied(EnvironmentFault):
    """The child process of `task` ended without a result; see `exit_code` and its last lines of stderr."""

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


# A task's name and request.
Task = tuple[str, Mapping[str, Any] | msgspec.Struct]
RunTasks = Callable[[list[Task], Callable[[int, Progress], None], CancelCheck], list[Any]]


class _Worker:
    """A process that runs one task at a time.

    Its environment limits numpy to one thread and lets ggml's threads sleep while they wait. Otherwise the threads
    compete for the cores, and on a busy machine take eight times as long (log-archive.md, "GPTQ rounding").
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
        """Start this task and send its events to `child`."""
        first, self._child = self._child is None, child
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it died immediately; its exit code gives the reason
            self.process.stdin.write(order.decode() + "\n")
            self.process.stdin.flush()
        if first:
            for reader in self._readers:
                reader.start()

    def close(self) -> None:
        """Kill the process and wait until it has ended."""
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(OSError):  # unsent input of an ended child process
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


# A process that holds more memory than this after a task ends, and the next task gets a new process.
_LITTLE_BYTES = 256 << 20
# Idle processes that finished a task; None: each process ends with its task.
_REUSED: ContextVar[list[_Worker] | None] = ContextVar("reused", default=None)


@contextmanager
def reused_workers() -> Iterator[None]:
    """Within this context, tasks of this thread reuse earlier processes that hold little memory.

    A process start takes 0.2 s and ggml's tables for types below three bits up to 15 s; a job has a dozen tasks. A
    nested context uses the processes of the outer one, which also outlive it.
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
    """Whether a task, or a nested one, has layers on a GPU.

    The driver frees all GPU memory only when the process ends.
    """
    for part in ("round", "measure"):
        request = getattr(request, part, request)
    return getattr(request, "gpu_layers", 0) > 0


class Child:
    """One running task in a process that runs nothing else at the same time."""

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
        return self._worker.process.pid

    def take(self, event: dict[str, Any]) -> None:
        """Handle one event of the process; called in the reader thread."""
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
        """Whether the task has ended. Raises: the task's own error. ChildDied: it ended without a result."""
        if self._goes_on:
            self._give_back()
        else:
            try:  # a process that closed its output is about to end
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
        """Kill the process and wait until it has ended; does nothing if the task is finished."""
        if self._goes_on:
            self._give_back()
        else:
            self._worker.close()

    def _give_back(self) -> None:
        if self._reused is not None and not self._given_back:
            self._given_back = True
            self._reused.append(self._worker)

    def wait(self, seconds: float) -> None:
        """Wait until the process closes its output, or for at most `seconds`."""
        self.all_sent.wait(seconds)


def run_task(
    task: str, request: Mapping[str, Any] | msgspec.Struct, on_progress: OnProgress, cancelled: CancelCheck
) -> Any:
    """Run one task to its end and return its result (plain JSON values).

    Raises: Cancelled: `cancelled()` became true; the child process has ended. ChildDied. All errors of the task.
    """
    return run_tasks([(task, request)], lambda _index, progress: on_progress(progress), cancelled)[0]


def answer_of(
    kind: type[T],
    task: str,
    request: Mapping[str, Any] | msgspec.Struct,
    on_progress: OnProgress,
    cancelled: CancelCheck,
) -> T:
    """Run a task like `run_task` and convert the result to `kind`."""
    return msgspec.convert(run_task(task, request, on_progress, cancelled), learned(kind))


def run_tasks(
    tasks: list[Task],
    on_progress: Callable[[int, Progress], None],
    cancelled: CancelCheck,
) -> list[Any]:
    """Run tasks in parallel, one child process each; `on_progress(index, progress)`.

    The first error ends all of them.
    """
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
            if running:  # a job starts hundreds of processes: wait for the event instead of polling
                children[min(running)].wait(_POLL_S)
    finally:
        for child in children:
            child.kill()
    return [child.result for child in children]


class Executor(msgspec.Struct, frozen=True):
    """Runs the tasks of single groups and tensors; `run` has the signature of `run_tasks`.

    The tasks are divided into at most `parts`. None means one part per thread of the request; the parts share the
    cores.
    """

    run: RunTasks
    parts: int | None = None


HERE: Final = Executor(run_tasks)


def described(error: TesseraError | OSError) -> dict[str, Any]:
    """An error as plain values for another process; `rebuilt` restores it."""
    if isinstance(error, TesseraError):
        family = "input" if isinstance(error, InputFault) else "environment"
        return {"code": error.code, "family": family, "message": str(error), "facts": _plain(error.facts())}
    if error.errno in NO_SPACE:
        reason = error.strerror or str(error)
        full = NotWritable(str(error.filename or "a file"), reason)
        return {"code": full.code, "family": "environment", "message": str(full), "facts": full.facts()}
    return {"code": EnvironmentFault.code, "family": "environment", "message": str(error), "facts": {}}


def _plain(facts: dict[str, object]) -> dict[str, object]:
    return {k: v if isinstance(v, str | int | float | bool | None) else str(v) for k, v in facts.items()}


def rebuilt(fault: dict[str, Any]) -> TesseraError:
    """Restore an error of another process, in the same class if this process has loaded it."""
    family = InputFault if fault["family"] == "input" else EnvironmentFault
    # codes are unique within quantize
    own = (k for k in _descendants(TesseraError) if k.__module__.startswith("quantize."))
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

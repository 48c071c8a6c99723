"""Child processes: starting them, waiting for them, and reading their replies.

`run_child` starts one for one reply; a `BoundedChild` stays and serves many requests on untrusted input. Runners
and workers of the quantizer use other messages; they are started with `spawn`.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import msgspec

from devices.child_command import answer_in, child_command
from devices.child_service import PATIENCE as ANSWER_PATIENCE
from devices.child_service import READY
from devices.environment import without_secrets
from devices.frames import read_frame, write_frame
from devices.process_memory import bound_memory, cpu_seconds, wants_cpu

_log = logging.getLogger(__name__)
_ROOT: Final = Path(__file__).resolve().parents[1]
STDERR_CHARACTERS: Final = 400
# A child that computes but gets little CPU time on a busy machine may take this many times the limit.
PATIENCE: Final = 6
# Beyond its limit, a child that computes nothing for this long waits for a driver that hangs.
STEP_S: Final = 2.0
# Minimum share of a limit that a working process computes, however busy the machine: 1 s in a step's 300 s, a tenth
# of which a runner's heartbeats take themselves, and one tick of the CPU clocks in 3 s.
MIN_FRACTION: Final = 1 / 300
# A cold interpreter on a busy two-core machine starts within 3 s; this is the final limit.
_START_LIMIT_S: Final = 30.0
# Interval of checks of a child's size if the system cannot limit it.
_WATCH_S: Final = 0.05
# A bounded child that computes nothing for this long waits for something that never comes: a machine with 30 other
# busy processes still gives each at least 0.7 % of two cores, ten ticks of the clock.
_STALLED_S: Final = 20.0
_SYSTEM_BOUNDS_MEMORY: Final[bool] = sys.platform == "linux"
# Work that any client can request gets only the CPU time that the model and the server leave.
_BACKGROUND_NICE, _LOWEST_NICE = 10, 19
_PASSED_ENVIRONMENT: Final = ("PATH", "SYSTEMROOT", "TEMP", "TMP", "TZ", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
# Time that a working child gets to exit by itself.
_CLOSE_S: Final = 0.2

Spent = Callable[[int], float | None]


def spawn(argv: Sequence[str], environment: Mapping[str, str], **options: Any) -> "subprocess.Popen[Any]":
    """Start a Tessera child with exactly this environment and without a window; `options` are those of Popen.

    It gets no more memory than the computer has, and leaves no core file. Raises: OSError.
    """
    if sys.platform == "win32":
        options["creationflags"] = options.get("creationflags", 0) | subprocess.CREATE_NO_WINDOW
    process = subprocess.Popen(list(argv), env=environment, **options)
    bound_memory(process.pid)
    return process


class StallDetector:
    """Detects whether a process that is waited for has stalled; `spent` returns its CPU seconds.

    CPU time decides, because on a busy machine every wall-clock limit is exceeded.
    """

    def __init__(self, pid: int, spent: Spent = cpu_seconds) -> None:
        self._pid = pid
        self._spent = spent
        self._started_at: float | None = None
        self._moved = self._moved_s = 0.0

    def begin(self) -> None:
        """Start a new wait."""
        self._started_at, self._moved_s = None, 0.0

    def over(
        self,
        waited_s: float,
        limit_s: float,
        threads: int = 1,
        *,
        stalled_s: float | None = None,
        longest_s: float | None = None,
    ) -> bool:
        """Whether to end a wait that has taken `waited_s`, more than `limit_s`.

        True if nothing was computed for `stalled_s` (None: `limit_s`) and no thread waits for a CPU, if more was
        computed than `threads` can in `limit_s`, and always after `longest_s`. If CPU time is unknown, the wall
        clock decides.
        """
        stalled_s = limit_s if stalled_s is None else stalled_s
        spent = self._spent(self._pid)
        if spent is None:
            return waited_s > (limit_s if longest_s is None else longest_s)
        if self._started_at is None:
            self._started_at = self._moved = spent
        elif spent - self._moved >= MIN_FRACTION * stalled_s:
            self._moved, self._moved_s = spent, waited_s
        if waited_s <= limit_s:
            return False
        if longest_s is not None and waited_s > longest_s:
            return True
        if spent - self._started_at > limit_s * threads:
            return True
        return waited_s - self._moved_s > stalled_s and not wants_cpu(self._pid)


class ProbeOutcome(msgspec.Struct, frozen=True):
    """Result of a child. `answer` is its JSON; `reason` says why there is none."""

    answer: Mapping[str, Any] | None
    reason: str
    seconds: float


def run_child(argv: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> ProbeOutcome:
    """Start `argv`, wait `timeout_s`, and kill its whole process tree if it still runs.

    On a busy machine, a child that has had less than `timeout_s` of CPU time and still computes gets longer.
    """
    started = time.monotonic()
    flags: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        flags = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        process = spawn(argv, without_secrets(env), **pipes, **flags)
    except OSError as error:
        return ProbeOutcome(None, f"it could not be started: {error.strerror}", time.monotonic() - started)
    try:
        stdout, stderr = _output(process, timeout_s)
    except subprocess.TimeoutExpired:
        kill_tree(process)
        return ProbeOutcome(None, f"it gave no answer within {timeout_s:g} s", time.monotonic() - started)
    answer = answer_in(stdout)
    reason = _failure(process.returncode, answer, stderr)
    return ProbeOutcome(None if reason else answer, reason, time.monotonic() - started)


def _output(process: "subprocess.Popen[bytes]", timeout_s: float) -> tuple[bytes, bytes]:
    """The child's output after it ended. Raises: TimeoutExpired."""
    started, step_s = time.monotonic(), min(STEP_S, timeout_s)
    still = StallDetector(process.pid)
    over = partial(still.over, limit_s=timeout_s, stalled_s=step_s, longest_s=PATIENCE * timeout_s)
    over(0.0)
    try:
        return process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        while not over(time.monotonic() - started):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=step_s)
        raise


def _failure(code: int, answer: Mapping[str, Any] | None, stderr: bytes) -> str:
    """Why the child gave no usable reply; empty if it did."""
    if code < 0:
        return f"it was killed by {_signal_name(-code)}{_tail(stderr)}"
    if answer is None:
        return f"it ended with code {code} and no answer{_tail(stderr)}"
    if "error" in answer:
        return str(answer["error"]) or "it failed without saying why"
    return f"it ended with code {code}{_tail(stderr)}" if code else ""


def kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """Kill a child and everything it started, and reap it."""
    if sys.platform == "win32":
        import psutil

        try:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        except psutil.Error:
            pass
        process.kill()
    else:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
    try:  # a grandchild outside the group may still hold the pipes
        process.communicate(timeout=1)
    except subprocess.TimeoutExpired:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def kill_group(pid: int) -> None:
    """Kill a process that leads its own session, and everything in that session."""
    if sys.platform == "win32":
        import psutil

        try:
            process = psutil.Process(pid)
            for child in [*process.children(recursive=True), process]:
                child.kill()
        except psutil.Error:
            pass
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1][-STDERR_CHARACTERS:]}" if lines else ""


class ChildFailed(Exception):
    """The child did not reply. `timed_out`: it was killed at its time limit; else it died by itself."""

    def __init__(self, *, timed_out: bool, out_of_memory: bool, exit_code: int | None) -> None:
        super().__init__(f"timed_out={timed_out} out_of_memory={out_of_memory} exit_code={exit_code}")
        self.timed_out = timed_out
        self.out_of_memory = out_of_memory
        self.exit_code = exit_code


class BoundedChild:
    """Runs `module`, which calls `child_service.serve`. One request at a time; safe from any thread or loop.

    `timeout_s` limits the CPU time of one reply (the start is not counted), `memory_bytes` the child's address
    space. `arguments` are the module's own, after both. A `background` child runs at low CPU priority.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        timeout_s: float,
        memory_bytes: int,
        background: bool = False,
    ) -> None:
        self._module = module
        self._arguments = arguments
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._background = background
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        # asyncio's default pool may be full of slow file work; a render must not wait for it.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=module.rsplit(".", 1)[-1])
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The process id of the running child."""
        return self._process.pid if self._process else None

    async def ask(self, body: bytes) -> bytes:
        """Send one frame and return the reply, without blocking the event loop. Raises ChildFailed."""
        import asyncio

        return await asyncio.get_running_loop().run_in_executor(self._pool, self.ask_blocking, body)

    def ask_blocking(self, body: bytes) -> bytes:
        """Send one frame and return the reply. Raises ChildFailed; the next call starts a new child."""
        with self._lock:
            process = self._running()
            verdict: list[str] = []
            done = threading.Event()
            watch = threading.Thread(target=self._watch, args=(process, done, verdict), daemon=True)
            watch.start()
            reply: bytes | None = None
            try:
                write_frame(cast("BinaryIO", process.stdin), body)
                reply = read_frame(cast("BinaryIO", process.stdout))
            except OSError:
                reply = None
            finally:
                done.set()
                watch.join()
            if reply is not None:
                return reply
            code = self._discard(process)
            raise ChildFailed(
                timed_out="time" in verdict,
                # A child that runs out of memory exits with 1 (see render_child) or is killed by the system.
                out_of_memory="memory" in verdict or ("time" not in verdict and code in {1, -9}),
                exit_code=code,
            )

    def warm(self) -> None:
        """Start the child now, so that the first request does not wait for it."""
        self._pool.submit(self._warm)

    def close(self) -> None:
        """Stop the child, even during work; later calls start a new one."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        process = self._process
        if self._lock.acquire(timeout=_CLOSE_S):
            self._lock.release()
        elif process is not None:
            process.kill()  # closing must not wait for the time limit of its work
        self._pool.shutdown(wait=True)
        with self._lock:
            if self._process is not None:
                self._discard(self._process)
        self._pool = ThreadPoolExecutor(1)

    def _warm(self) -> None:
        with self._lock:
            self._running()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        if self._process is not None:
            self._discard(self._process)
        environment = {k: v for k, v in os.environ.items() if k in _PASSED_ENVIRONMENT}
        environment["PYTHONPATH"] = str(_ROOT)
        command = child_command(self._module, str(self._memory_bytes), str(self._timeout_s), *self._arguments)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process = spawn(command, environment, **pipes)
        self._process = process
        if self._background and hasattr(os, "setpriority"):
            with contextlib.suppress(OSError):
                own = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, process.pid, min(own + _BACKGROUND_NICE, _LOWEST_NICE))
        timer = threading.Timer(_START_LIMIT_S, process.kill)
        timer.start()
        greeting = read_frame(cast("BinaryIO", process.stdout))
        timer.cancel()
        timer.join()
        if greeting != READY:
            raise ChildFailed(timed_out=False, out_of_memory=False, exit_code=self._discard(process))
        return process

    def _watch(self, process: subprocess.Popen[bytes], done: threading.Event, verdict: list[str]) -> None:
        """Kill the child at its time limit or, if the system cannot limit memory, at its memory limit.

        The limit applies to CPU time: on a busy machine a healthy child may wait long for a core. A child that
        computes nothing at all is not waiting for a core.
        """
        import psutil

        started, still = time.monotonic(), StallDetector(process.pid)
        longest_s = self._timeout_s * ANSWER_PATIENCE
        over = partial(still.over, limit_s=self._timeout_s, stalled_s=_STALLED_S, longest_s=longest_s)
        over(0.0)
        pause = self._timeout_s if _SYSTEM_BOUNDS_MEMORY else _WATCH_S
        while not done.wait(pause):
            pause = _WATCH_S
            try:
                size = 0 if _SYSTEM_BOUNDS_MEMORY else psutil.Process(process.pid).memory_info().rss
            except psutil.Error:
                return
            except OSError:  # no file descriptor left for the check; the next check may have one
                size = 0
            late = over(time.monotonic() - started)
            if size > self._memory_bytes or late:
                verdict.append("time" if late else "memory")
                process.kill()
                return

    def _discard(self, process: subprocess.Popen[bytes]) -> int | None:
        self._process = None
        self.restarts += 1
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            code: int | None = process.wait(0.2)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        _log.info("child ended module=%s exit_code=%s", self._module, code)
        return code

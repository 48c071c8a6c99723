"""A warm child process for work on untrusted input: limited in time and memory, restarted when it dies."""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Final, cast

import psutil

from devices.child_command import child_command
from devices.process_memory import cpu_seconds
from engine.chat.child_service import PATIENCE, READY
from engine.core.frames import read_frame, write_frame

_log = logging.getLogger(__name__)
_ROOT: Final = Path(__file__).resolve().parents[2]
# A cold interpreter on a busy two-core machine starts within 3 s; this is only the end of patience.
_START_LIMIT_S: Final = 30.0
# How often the size of a child is looked at where the system cannot bound it.
_WATCH_S: Final = 0.05
# A child that computes nothing for so long waits for something that does not come: a machine with 30 others at work
# still gives the least of its processes .7 % of two cores, ten ticks of the clock.
_STALLED_S: Final = 20.0
_SYSTEM_BOUNDS_MEMORY: Final[bool] = sys.platform == "linux"
# What anybody can have computed takes what the model and the server leave of the CPU.
_BACKGROUND_NICE: Final = 10
_PASSED_ENVIRONMENT: Final = ("PATH", "SYSTEMROOT", "TEMP", "TMP", "TZ", "LANG", "LC_ALL", "LD_LIBRARY_PATH")


class ChildFailed(Exception):
    """The child did not answer. `timed_out`: it was killed at its time limit; else it died by itself."""

    def __init__(self, *, timed_out: bool, out_of_memory: bool, exit_code: int | None) -> None:
        super().__init__(f"timed_out={timed_out} out_of_memory={out_of_memory} exit_code={exit_code}")
        self.timed_out = timed_out
        self.out_of_memory = out_of_memory
        self.exit_code = exit_code


# What a child that is at work gets to end by itself.
_CLOSE_S: Final = 0.2


class BoundedChild:
    """Runs `module`, which calls `child_service.serve`. One request at a time; safe from any thread or loop.

    `timeout_s` bounds what one answer computes (the start is not counted), `memory_bytes` the child's address
    space. A `background` child takes what others leave of the CPU.
    """

    def __init__(self, module: str, *, timeout_s: float, memory_bytes: int, background: bool = False) -> None:
        self._module = module
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
        """Answer one frame without blocking the event loop. Raises ChildFailed."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.ask_blocking, body)

    def ask_blocking(self, body: bytes) -> bytes:
        """Answer one frame. Raises ChildFailed; the next call finds a fresh child."""
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
                # A child that runs out of memory leaves with 1 (see render_child) or is killed by the system.
                out_of_memory="memory" in verdict or ("time" not in verdict and code in {1, -9}),
                exit_code=code,
            )

    def warm(self) -> None:
        """Start the child now, so that the first request does not wait for it."""
        self._pool.submit(self._warm)

    def close(self) -> None:
        """End the child, whatever it is at; later calls start a new one."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        process = self._process
        if self._lock.acquire(timeout=_CLOSE_S):
            self._lock.release()
        elif process is not None:
            process.kill()  # its work has a limit that nobody who closes wants to wait for
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
        command = child_command(self._module, str(self._memory_bytes), str(self._timeout_s))
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self._process = process
        if self._background and hasattr(os, "setpriority"):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _BACKGROUND_NICE)
        timer = threading.Timer(_START_LIMIT_S, process.kill)
        timer.start()
        greeting = read_frame(cast("BinaryIO", process.stdout))
        timer.cancel()
        timer.join()
        if greeting != READY:
            raise ChildFailed(timed_out=False, out_of_memory=False, exit_code=self._discard(process))
        return process

    def _watch(self, process: subprocess.Popen[bytes], done: threading.Event, verdict: list[str]) -> None:
        """Kill the child at its time limit, or, where the system sets no bound, at its memory limit.

        The limit is of processor time: on a busy machine an innocent child may wait long for its turn. One that
        computes nothing at all is not waiting for its turn.
        """
        started, spent_s = time.monotonic(), cpu_seconds(process.pid)
        moved, last_s = started, spent_s
        pause = self._timeout_s if _SYSTEM_BOUNDS_MEMORY else _WATCH_S
        while not done.wait(pause):
            pause = _WATCH_S
            try:
                size = 0 if _SYSTEM_BOUNDS_MEMORY else psutil.Process(process.pid).memory_info().rss
            except psutil.Error:
                return
            except OSError:  # no descriptor to look with; the next look may have one
                size = 0
            if size > self._memory_bytes:
                verdict.append("memory")
                process.kill()
                return
            now = time.monotonic()
            passed_s = now - started
            now_s = cpu_seconds(process.pid)
            spent_s = now_s if spent_s is None else spent_s
            if now_s != last_s:
                moved, last_s = now, now_s
            worked = now_s is not None and spent_s is not None and now_s - spent_s >= self._timeout_s
            stalled = now_s is not None and now - moved >= _STALLED_S
            if passed_s >= self._timeout_s and (worked or stalled or passed_s >= self._timeout_s * PATIENCE):
                verdict.append("time")
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

"""Detects a stuck runner by its CPU time, because wall-clock limits fail on a busy machine.

A runner that uses CPU time is working, until it has used more than the longest real work needs. A runner that uses
no CPU time for as long is stuck.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final

from devices.child import Spent, StallDetector
from devices.process_memory import cpu_seconds
from engine.message_catalog.reasons import Reason, because
from engine.runner.protocol import LoadSettings, Saving

# A cold interpreter with llama.cpp or ONNX Runtime sends its hello within 10 s on a busy two-core machine.
START_S: Final = 90.0
# Fifteen missed heartbeats.
SILENCE_S: Final = 30.0
# The longest real step is a full batch of a large model on a slow CPU, about a minute.
STALL_S: Final = 300.0
# A runner that stores prefixes while it shuts down: a disk that takes no byte for this long is broken, and one that
# takes longer in all is too slow to wait for (2 GB at 17 MB/s).
DISK_S: Final = 20.0
SAVE_S: Final = 120.0
# Number of checks per wait. After a suspend the clock has jumped, which counts as only one check.
LOOKS: Final = 3
# A runner that is shutting down on a busy CPU gets this many times the limit.
PATIENCE: Final = 6
# Makes the time of a check slightly more than the limit, so that reaching it counts as exceeding it.
PASSED: Final = 1.001


class Watchdog:
    """Monitors one runner from its start; `give_up` gets the reason. Use from one event loop."""

    def __init__(self, pid: int, give_up: Callable[[Reason], None], spent: Spent = cpu_seconds) -> None:
        self._pid = pid
        self._give_up = give_up
        self._spent = spent
        self._silence = StallDetector(pid, spent)
        self._step = StallDetector(pid, spent)
        self._threads = 1
        self.saving = Saving(written_bytes=0, left_bytes=0)  # the last that a runner sent at its shutdown
        self._timer: asyncio.TimerHandle | None = None
        self._wait(START_S, because("did_not_start", seconds=START_S))

    def loads(self, settings: LoadSettings) -> None:
        """Derive the number of computing threads from the settings of a load.

        For a GPU or NPU, CPU time means little while a driver waits. If one thread spins, its CPU time reaches the
        limit like the clock of an idle machine. If no thread computes, the wall-clock limit applies.
        """
        if (settings.devices and settings.n_gpu_layers) or settings.provider:
            self._threads = 1
        else:
            self._threads = max(settings.n_threads, settings.n_threads_batch) or os.cpu_count() or 1

    def on_heartbeat(self, step_s: float) -> None:
        """Record a heartbeat; the current step has taken `step_s` seconds so far (0: there is none)."""
        if not step_s:
            self._step.begin()
        if step_s and self._step.over(step_s, STALL_S, self._threads):
            self.stop()
            self._give_up(because("step_took", seconds=step_s))
        else:
            self._wait(SILENCE_S, because("no_sign_of_life", seconds=SILENCE_S))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def sees_end(self, end: Awaitable[object], limit_s: float) -> bool:
        """Wait for the exit of a runner that is shutting down; False: it is stuck or takes too long.

        The runner may finish its step. On a busy machine it has up to PATIENCE times `limit_s`. While it stores
        prefixes, it may compute nothing, and has up to SAVE_S if its disk takes bytes.
        """
        ending, still = asyncio.ensure_future(end), StallDetector(self._pid, self._spent)
        pause_s, look, began_at, saved_at, saved_bytes = limit_s / LOOKS, 0, 0, 0, 0
        still.over(0.0, limit_s, self._threads)
        try:
            while not (await asyncio.wait((ending,), timeout=pause_s))[0]:
                look += 1
                if self.saving.written_bytes > saved_bytes:
                    saved_at, saved_bytes = look, self.saving.written_bytes
                if self.saving.left_bytes and (look - saved_at) * pause_s < DISK_S and look * pause_s < SAVE_S:
                    began_at = look
                    still.begin()
                waited_s = (look - began_at) * pause_s * PASSED
                if still.over(waited_s, limit_s, self._threads) or waited_s > PATIENCE * limit_s * PASSED:
                    return False
            return True
        finally:
            ending.cancel()

    def _wait(self, limit_s: float, reason: Reason) -> None:
        self.stop()
        self._silence.begin()
        self._timer = asyncio.get_running_loop().call_later(
            limit_s / LOOKS, self._check_silence, 1, limit_s, reason
        )

    def _check_silence(self, count: int, limit_s: float, reason: Reason) -> None:
        """Check a runner that has sent nothing for `count` checks."""
        if self._silence.over(count * limit_s / LOOKS * PASSED, limit_s, self._threads):
            self._give_up(reason)
            return
        self._timer = asyncio.get_running_loop().call_later(
            limit_s / LOOKS, self._check_silence, count + 1, limit_s, reason
        )

"""A server whose event loop stands still answers nobody any more: it is ended, so that it can be started again."""

import asyncio
import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from typing import Final

# No work of the loop takes a second; a computer that swaps may need many times that.
STILL_S: Final = 120
LOOK_S: Final = 1.0
# How long the workers wait for each other, so that none does the work of two.
TOGETHER_S: Final = 0.2
# sysexits.h, EX_SOFTWARE: services are started again after it.
EXIT: Final = 70

log = logging.getLogger(__name__)


class LoopWatch:
    """A thread that counts the seconds since the loop last turned.

    The seconds are those of the thread, so a process that was stopped or a computer that slept is not taken for one
    that stands still. Known cause: Python waits for ever for a thread that has no memory to begin with.
    """

    def __init__(self, still_s: int = STILL_S) -> None:
        self._still_s = still_s
        self._turns = 0
        self._over = threading.Event()

    async def watch(self) -> None:
        """Until it is cancelled."""
        threading.Thread(target=self._count, name="loop-watch", daemon=True).start()
        try:
            while True:
                self._turns += 1
                await asyncio.sleep(LOOK_S)
        finally:
            self._over.set()

    def _count(self) -> None:
        seen, still = -1, 0
        while not self._over.is_set():
            time.sleep(LOOK_S)
            turns = self._turns
            still = 0 if turns != seen else still + 1
            seen = turns
            if still >= self._still_s:
                sys.stderr.write(f"The server has stood still for {still} s and ends. Where its threads are:\n")
                sys.stderr.flush()
                faulthandler.dump_traceback(all_threads=True)
                os._exit(EXIT)


async def start_threads() -> None:
    """Begin the loop's worker threads now: one that has no memory to begin with would hold the loop for ever."""
    count = min(32, (os.cpu_count() or 1) + 4)  # as many as asyncio begins one by one
    together = threading.Barrier(count)

    def wait() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # some were at work, so they are there
            together.wait(TOGETHER_S)

    loop = asyncio.get_running_loop()
    try:
        waiting = [loop.run_in_executor(None, wait) for _ in range(count)]
    except RuntimeError as error:  # no room for one more thread: those that are there work
        log.warning("%s", error)
    else:
        await asyncio.gather(*waiting)

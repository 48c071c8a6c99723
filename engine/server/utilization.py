"""Utilization of the computer in the last minutes: samples in a ring buffer."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from devices.host import Host
from devices.host_real import RealHost
from devices.sensors import UsageSampler
from devices.types import Machine, Usage

log = logging.getLogger(__name__)
EVERY_S: Final = 1.0
# Only every fifth sample is taken while no model works, no client reads the samples and no meter measures power:
# each wakes the CPU about six times.
IDLE_TIMES: Final = 5
# A program that reads the samples gets one per second for this long.
READ_S: Final = 10.0
HISTORY_S: Final = 600


class Utilization:
    """Samples while the server runs, off the event loop. `read_machine` lists the devices and is called once.

    There is one sample per second while `busy` returns True, while the samples are read, and where power is
    measured; else one in IDLE_TIMES seconds.
    """

    def __init__(
        self, read_machine: Callable[[], Machine], host: Host | None = None, every_s: float = EVERY_S
    ) -> None:
        self._read_machine = read_machine
        self._host = host or RealHost()
        self._every_s = every_s
        self._ring: deque[Usage] = deque(maxlen=HISTORY_S)
        self.also: Callable[[], Awaitable[None]] | None = None  # called once per second on the loop
        self.on_sample: Callable[[Usage, float], None] = lambda _usage, _seconds: None
        self.busy: Callable[[], bool] = lambda: False
        self._read_at = float("-inf")
        self._read = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._sampler: UsageSampler | None = None
        self._looking = asyncio.Lock()
        self._looked = 0.0

    def start(self) -> None:
        """Start sampling; needs a running loop."""
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._run(), name="utilization")

    async def stop(self) -> None:
        """Stop sampling; the samples stay."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        machine = await asyncio.to_thread(self._read_machine)
        sampler = UsageSampler(self._host, machine.devices)
        loop = asyncio.get_running_loop()
        due = loop.time()
        await asyncio.to_thread(sampler.sample)  # rates need a first sample as reference
        self._sampler, self._looked = sampler, loop.time()
        while True:
            due = max(due + self._every_s, loop.time())
            await asyncio.sleep(due - loop.time())
            if self._idle():
                self._read.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._read.wait(), (IDLE_TIMES - 1) * self._every_s)
            try:
                usage = await self._sample(0.0)
                if usage is not None:
                    self._ring.append(usage)
                if self.also is not None:
                    await self.also()
            except OSError as error:  # for example a removed device: retry later
                log.warning("no usage sample: %s", error)

    def _idle(self) -> bool:
        metered = bool(self._ring and self._ring[-1].parts)
        return not (metered or self.busy() or time.monotonic() - self._read_at < READ_S)

    def _is_read(self) -> None:
        """Take a sample each second from now on. Thread-safe."""
        self._read_at = time.monotonic()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._read.set)

    async def fresh(self, least_s: float) -> None:
        """Take a sample now unless the last is less than `least_s` old; `on_sample` is called."""
        with contextlib.suppress(OSError):
            await self._sample(least_s)

    async def _sample(self, least_s: float) -> Usage | None:
        async with self._looking:
            before = self._looked
            if self._sampler is None or asyncio.get_running_loop().time() - before < least_s:
                return None
            usage = await asyncio.to_thread(self._sampler.sample)
            self._looked = asyncio.get_running_loop().time()
            self.on_sample(usage, self._looked - before)
            return usage

    def newest(self) -> Usage | None:
        """The last sample; None in the first second."""
        self._is_read()
        return self.peek()

    def last(self, seconds: int) -> tuple[Usage, ...]:
        """Samples of the last `seconds`, oldest first."""
        self._is_read()
        samples = list(self._ring)
        return tuple(s for s in samples if s.at >= samples[-1].at - seconds)

    def peek(self) -> Usage | None:
        """The last sample, for a reader that asks for no more of them."""
        return self._ring[-1] if self._ring else None

"""Power while something is measured: its mean, and what goes beyond the computer's rest."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from devices.host import Host
from devices.types import Machine
from devices.usage import UsageSampler

EVERY_S: Final = 0.5
# The computer's rest is looked at for so long, where there is a meter: six looks.
REST_S: Final = 3.0


@dataclass
class Drawn:
    """Joules of the `seconds` in which a meter told something."""

    joules: float = 0.0
    seconds: float = 0.0

    @property
    def watts(self) -> float | None:
        """The mean; None: no meter."""
        return self.joules / self.seconds if self.seconds else None

    def tokens_per_joule(self, tokens: int, rest_w: float | None) -> float | None:
        """Of `tokens` generated meanwhile, what is drawn at rest left out; None where that is not known."""
        above = self.joules - (rest_w or 0.0) * self.seconds
        return tokens / above if rest_w is not None and above > 0 else None


class Power:
    """Reads one computer's meters, one look at a time. Without a `machine` nothing is read."""

    def __init__(self, host: Host, machine: Machine | None) -> None:
        self._sampler = UsageSampler(host, machine.devices) if machine is not None else None
        self._at = 0.0

    async def rest_w(self) -> float | None:
        """What is drawn before anything is loaded. Takes REST_S, half a second where there is no meter."""
        async with self.during() as drawn:
            await asyncio.sleep(1.5 * EVERY_S)
            if drawn.seconds:
                await asyncio.sleep(REST_S - 1.5 * EVERY_S)
        return drawn.watts

    @contextlib.asynccontextmanager
    async def during(self) -> AsyncIterator[Drawn]:
        """Counts until the block ends. Where the second look tells nothing there is no third to disturb."""
        drawn = Drawn()
        if self._sampler is None:
            yield drawn
            return
        await self._look(Drawn())  # counters begin here

        async def watch() -> None:
            while True:
                await asyncio.sleep(EVERY_S)
                await self._look(drawn)
                if not drawn.seconds:
                    return

        task = asyncio.create_task(watch())
        try:
            yield drawn
        finally:
            ended = task.done()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            if not ended:
                await self._look(drawn)

    async def _look(self, drawn: Drawn) -> None:
        assert self._sampler is not None
        watts = (await asyncio.to_thread(self._sampler.sample)).power_w
        now = time.monotonic()
        if watts is not None:
            drawn.joules += watts * (now - self._at)
            drawn.seconds += now - self._at
        self._at = now

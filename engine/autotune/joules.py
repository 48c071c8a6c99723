"""Joules of trials, counted as those of answers are: by the joule ledger, with the computer's rest left out."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection
from typing import Final

import psutil

from devices.host import Host
from devices.power import CPU, READ_RAPL, SYSTEM, looked_for, meters
from devices.process_memory import processor_s
from devices.types import Machine
from devices.usage import UsageSampler
from engine.energy.ledger import Active, JouleLedger
from engine.errors import EnvironmentFault
from engine.types import Effort

EVERY_S: Final = 0.5
# So many looks at the computer's rest, and the longest that is waited for them. The median of ten looks that err by
# 5 % each errs by 2 %.
RESTS: Final = 10
PATIENCE_S: Final = 60.0
# What is drawn inside a processor's package is counted there.
_WITHIN: Final = frozenset({"igpu", "npu"})


class NoPowerMeter(EnvironmentFault):
    """Nothing tells what is drawn; `reason` says what was looked for, and what may help."""

    code = "no_power_meter"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Settings cannot be chosen by energy here: {reason} Choosing by speed needs no meter.")
        self.reason = reason


class NeverAtRest(EnvironmentFault):
    """Other programs keep the processors busy, so the computer's rest is not known."""

    code = "never_at_rest"

    def __init__(self) -> None:
        super().__init__(
            "Settings cannot be chosen by energy now: what the computer draws at rest is not known, for other "
            f"programs kept the processors busy for {PATIENCE_S:.0f} s. End them and start again."
        )


class Unmetered(EnvironmentFault):
    """A trial whose joules no meter tells."""

    code = "unmetered"


class EnergyMeter:
    """The meters of one computer for a whole search. Learn the rest first, then count runs one at a time."""

    def __init__(self, host: Host, machine: Machine) -> None:
        self._host, self._machine = host, machine
        self._sampler = UsageSampler(host, machine.devices)
        self._ledger = JouleLedger()
        self._seen: set[str] = set()
        self._cores = psutil.cpu_count() or 1
        self._at = 0.0
        self._cpu_s = 0.0

    async def rest(self) -> None:
        """Look at what the computer draws before anything is loaded: five seconds, longer while it is busy.

        Raises: NoPowerMeter, NeverAtRest.
        """
        await self._look()  # counters begin here
        for _ in range(round(PATIENCE_S / EVERY_S)):
            await asyncio.sleep(EVERY_S)
            seconds, parts, busy_s = await self._look()
            self._ledger.interval(self._at, seconds, parts, busy_s, self._cores, {})
            if self._missing(()) is not None:
                raise NoPowerMeter(self._why())
            if parts and all(self._ledger.rests(part) >= RESTS for part in parts):
                return
        raise NeverAtRest

    @contextlib.asynccontextmanager
    async def during(self, pid: int, devices: Collection[str] = ()) -> AsyncIterator[None]:
        """Count what the runner of that process draws until the block ends. `devices` are llama.cpp's names."""
        held = frozenset(self._ids(devices))
        await self._look()  # what was drawn up to now is nobody's
        self._cpu_s = processor_s(pid) or 0.0
        over = asyncio.Event()

        async def watch() -> None:
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), EVERY_S)
                await self._count(pid, held)

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            over.set()
            await task

    def joules(self, pid: int, effort: Effort, devices: Collection[str] = ()) -> float:
        """Joules beyond the computer's rest of a request that just ended.

        Raises: Unmetered: something that it ran on has no meter.
        """
        missing = self._missing(devices)
        if missing is not None:
            raise Unmetered(f"No power meter tells what {missing} draws.")
        return self._ledger.finished(pid, effort.number, effort.own_s, effort.all_s, self._at) or 0.0

    def warm(self, pid: int, effort: Effort) -> None:
        """A request ended that is not counted."""
        self._ledger.told(pid, effort.all_s, {})

    async def _look(self) -> tuple[float, dict[str, float], float]:
        """Seconds since the look before, watts by part, and seconds that all processors were busy."""
        usage = await asyncio.to_thread(self._sampler.sample)
        now = time.monotonic()
        seconds, self._at = now - self._at, now
        self._seen |= {part for part, _ in usage.parts}
        return seconds, dict(usage.parts), usage.cpu_frac * self._cores * seconds

    async def _count(self, pid: int, devices: frozenset[str]) -> None:
        seconds, parts, busy_s = await self._look()
        before, cpu_s = self._cpu_s, processor_s(pid)
        self._cpu_s = before if cpu_s is None else cpu_s
        active = Active("trial", self._cpu_s - before, devices)
        self._ledger.interval(self._at, seconds, parts, busy_s, self._cores, {pid: active})

    def _ids(self, names: Collection[str]) -> list[str]:
        return [d.id for d in self._machine.devices for r in d.runtimes if r.device_name in names]

    def _missing(self, names: Collection[str]) -> str | None:
        """What of the processor and these devices no meter that the ledger counts has told of so far."""
        parts = self._seen - {SYSTEM} or self._seen
        if parts == {SYSTEM}:
            return None
        if CPU not in parts:
            return "the processor"
        held = (self._machine.device(one) for one in self._ids(names))
        return next((d.name for d in held if d and d.id not in parts and d.kind not in _WITHIN), None)

    def _why(self) -> str:
        locked = [m.name for m in meters(self._host, self._machine.devices) if not m.readable]
        told = f"no meter tells what the processor draws. Looked for: {looked_for(self._host.system)}."
        if locked:
            told += f" Found but not readable for this user: {', '.join(locked)}"
            told += f" (until the next start: {READ_RAPL})." if any(n.startswith("rapl") for n in locked) else "."
        return told

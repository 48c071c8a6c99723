"""Joules of measurements, counted as those of answers are: by the joule ledger, without the computer's rest."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Final

import psutil

from devices.host import Host
from devices.power import CPU, READ_RAPL, SYSTEM, looked_for, meters, whole_w
from devices.process_memory import cpu_seconds
from devices.types import Machine
from devices.utilization import UsageSampler
from engine.core.errors import EnvironmentFault
from engine.core.types import StepTime
from engine.energy.energy_accounting import Active, JouleLedger
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because

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

    def __init__(self, why: Reason) -> None:
        super().__init__(because("no_power_meter", why=why))
        self.reason = sentence(why)


class NeverAtRest(EnvironmentFault):
    """Other programs keep the processors busy, so the computer's rest is not known."""

    code = "never_at_rest"

    def __init__(self, patience_s: float) -> None:
        super().__init__(because("never_at_rest", seconds=patience_s))


class Unmetered(EnvironmentFault):
    """A run whose joules no meter tells."""

    code = "unmetered"


@dataclass
class Drawn:
    """What was drawn while something ran: by the whole computer in `seconds`, and beyond its rest by the runner.

    `joules` None: the rest, or what it ran on, is not known.
    """

    whole_j: float = 0.0
    seconds: float = 0.0
    joules: float | None = None

    @property
    def watts(self) -> float | None:
        """The whole computer's mean; None: no meter."""
        return self.whole_j / self.seconds if self.seconds else None

    def tokens_per_joule(self, tokens: int) -> float | None:
        """Of `tokens` generated meanwhile."""
        return tokens / self.joules if self.joules else None


class EnergyMeter:
    """The meters of one computer for a whole measurement. Learn the rest first, then count runs one at a time."""

    def __init__(self, host: Host, machine: Machine) -> None:
        self._host, self._machine = host, machine
        self._sampler = UsageSampler(host, machine.devices)
        self._ledger = JouleLedger()
        self._seen: set[str] = set()
        self._cores = psutil.cpu_count() or 1
        self._at = 0.0
        self._cpu_s = 0.0
        self._rested = False

    @property
    def metered(self) -> bool:
        """Some meter told something."""
        return bool(self._seen)

    @property
    def idle_w(self) -> float | None:
        """What the computer draws at rest; None: not known."""
        idle = {part: self._ledger.idle_w(part) or 0.0 for part in self._seen}
        return whole_w(idle) if self._rested else None

    async def rest(self, patience_s: float | None = None) -> None:
        """Look at what the computer draws before anything is loaded: five seconds, longer while it is busy.

        Raises: NoPowerMeter, NeverAtRest.
        """
        patience_s = PATIENCE_S if patience_s is None else patience_s
        await self._look()  # counters begin here
        for _ in range(round(patience_s / EVERY_S)):
            await asyncio.sleep(EVERY_S)
            seconds, parts, busy_s = await self._look()
            self._ledger.interval(self._at, seconds, parts, busy_s, self._cores, {})
            if self._missing(()) is not None:
                raise NoPowerMeter(self._why())
            if parts and all(self._ledger.rests(part) >= RESTS for part in parts):
                self._rested = True
                return
        raise NeverAtRest(patience_s)

    @contextlib.asynccontextmanager
    async def during(self, pid: int, devices: Collection[str] = ()) -> AsyncIterator[Drawn]:
        """Count what the runner of that process draws until the block ends. `devices` are llama.cpp's names."""
        drawn, before_j = Drawn(), self._ledger.total_j
        held = frozenset(self._ids(devices))
        await self._look()  # what was drawn up to now is nobody's
        self._cpu_s = cpu_seconds(pid) or 0.0
        over = asyncio.Event()

        async def watch() -> None:
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), EVERY_S)
                await self._count(pid, held, drawn)

        task = asyncio.create_task(watch())
        try:
            yield drawn
        finally:
            over.set()
            await task
        if self._rested and self._missing(devices) is None:
            drawn.joules = self._ledger.total_j - before_j

    def joules(self, pid: int, step_time: StepTime, devices: Collection[str] = ()) -> float:
        """Joules beyond the computer's rest of a request that just ended.

        Raises: Unmetered: something that it ran on has no meter.
        """
        missing = self._missing(devices)
        if missing is not None:
            raise Unmetered(because("unmetered", device=missing))
        return self._ledger.finished(pid, step_time.number, step_time.own_s, step_time.all_s, self._at) or 0.0

    def warm(self, pid: int, step_time: StepTime) -> None:
        """A request ended that is not counted."""
        self._ledger.add_step_times(pid, step_time.all_s, {})

    async def _look(self) -> tuple[float, dict[str, float], float]:
        """Seconds since the look before, watts by part, and seconds that all processors were busy."""
        usage = await asyncio.to_thread(self._sampler.sample)
        now = time.monotonic()
        seconds, self._at = now - self._at, now
        self._seen |= {part for part, _ in usage.parts}
        return seconds, dict(usage.parts), usage.cpu_frac * self._cores * seconds

    async def _count(self, pid: int, devices: frozenset[str], drawn: Drawn) -> None:
        seconds, parts, busy_s = await self._look()
        watts = whole_w(parts)
        if watts is not None:
            drawn.whole_j += watts * seconds
            drawn.seconds += seconds
        before, cpu_s = self._cpu_s, cpu_seconds(pid)
        self._cpu_s = before if cpu_s is None else cpu_s
        active = Active("measured", self._cpu_s - before, devices)
        self._ledger.interval(self._at, seconds, parts, busy_s, self._cores, {pid: active})

    def _ids(self, names: Collection[str]) -> list[str]:
        return [d.id for d in self._machine.devices for r in d.runtimes if r.device_name in names]

    def _missing(self, names: Collection[str]) -> str | Reason | None:
        """What of the processor and these devices no meter that the ledger counts has told of so far."""
        parts = self._seen - {SYSTEM} or self._seen
        if parts == {SYSTEM}:
            return None
        if CPU not in parts:
            return because("the_processor")
        held = (self._machine.device(one) for one in self._ids(names))
        return next((d.name for d in held if d and d.id not in parts and d.kind not in _WITHIN), None)

    def _why(self) -> Reason:
        places = looked_for(self._host.system)
        locked = tuple(m.name for m in meters(self._host, self._machine.devices) if not m.readable)
        if any(name.startswith("rapl") for name in locked):
            return because("meter_locked_until", places=places, locked=locked, command=READ_RAPL)
        return (
            because("meter_locked", places=places, locked=locked) if locked else because("no_meter", places=places)
        )

"""Measures the energy of benchmark runs with the same joule ledger as requests, without the idle power."""

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
from devices.sensors import UsageSampler
from devices.types import Machine
from engine.core.errors import EnvironmentFault
from engine.core.types import StepTime
from engine.energy.energy_accounting import Active, JouleLedger
from engine.message_catalog import sentence
from engine.message_catalog.reasons import Reason, because

EVERY_S: Final = 0.5
# Number of idle samples, and the longest wait for them. The median of ten samples with an error of 5 % each has an
# error of 2 %.
RESTS: Final = 10
PATIENCE_S: Final = 60.0
# The CPU package's meter already includes these.
_WITHIN: Final = frozenset({"igpu", "npu"})


class NoPowerMeter(EnvironmentFault):
    """No power meter is available; `reason` says what was searched for, and what may help."""

    code = "no_power_meter"

    def __init__(self, why: Reason) -> None:
        super().__init__(because("no_power_meter", why=why))
        self.reason = sentence(why)


class NeverAtRest(EnvironmentFault):
    """Other programs keep the CPU busy, so the idle power cannot be measured."""

    code = "never_at_rest"

    def __init__(self, patience_s: float) -> None:
        super().__init__(because("never_at_rest", seconds=patience_s))


class Unmetered(EnvironmentFault):
    """No meter covers the device of a run."""

    code = "unmetered"


@dataclass
class Drawn:
    """Energy during a run: of the whole computer in `seconds`, and of the runner above idle.

    `joules` is None if the idle power is unknown or a device of the run has no meter.
    """

    whole_j: float = 0.0
    seconds: float = 0.0
    joules: float | None = None

    @property
    def watts(self) -> float | None:
        """Mean power of the whole computer; None if there is no meter."""
        return self.whole_j / self.seconds if self.seconds else None

    def tokens_per_joule(self, tokens: int) -> float | None:
        """Tokens per joule for `tokens` generated during the run."""
        return tokens / self.joules if self.joules else None


class EnergyMeter:
    """Meters of one computer during a measurement. Call `rest` first, then count runs one at a time."""

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
        """Whether any meter has reported a value."""
        return bool(self._seen)

    @property
    def idle_w(self) -> float | None:
        """Idle power of the computer in watts; None if unknown."""
        idle = {part: self._ledger.idle_w(part) or 0.0 for part in self._seen}
        return whole_w(idle) if self._rested else None

    async def rest(self, patience_s: float | None = None) -> None:
        """Measure the idle power before anything is loaded: for 5 s, longer while the computer is busy.

        Raises: NoPowerMeter, NeverAtRest.
        """
        patience_s = PATIENCE_S if patience_s is None else patience_s
        await self._sample()  # start of the counters
        for _ in range(round(patience_s / EVERY_S)):
            await asyncio.sleep(EVERY_S)
            seconds, parts, busy_s = await self._sample()
            self._ledger.interval(self._at, seconds, parts, busy_s, self._cores, {})
            if self._missing(()) is not None:
                raise NoPowerMeter(self._missing_meter_reason())
            if parts and all(self._ledger.rests(part) >= RESTS for part in parts):
                self._rested = True
                return
        raise NeverAtRest(patience_s)

    @contextlib.asynccontextmanager
    async def during(self, pid: int, devices: Collection[str] = ()) -> AsyncIterator[Drawn]:
        """Count the energy of the runner process `pid` until the block ends. `devices` are llama.cpp's names."""
        drawn, before_j = Drawn(), self._ledger.total_j
        device_ids = frozenset(self._ids(devices))
        await self._sample()  # discard energy used before the run
        self._cpu_s = cpu_seconds(pid) or 0.0
        over = asyncio.Event()

        async def watch() -> None:
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), EVERY_S)
                await self._count(pid, device_ids, drawn)

        task = asyncio.create_task(watch())
        try:
            yield drawn
        finally:
            over.set()
            await task
        if self._rested and self._missing(devices) is None:
            drawn.joules = self._ledger.total_j - before_j

    def joules(self, pid: int, step_time: StepTime, devices: Collection[str] = ()) -> float:
        """Joules above idle of a request that just ended.

        Raises: Unmetered: a device that it ran on has no meter.
        """
        missing = self._missing(devices)
        if missing is not None:
            raise Unmetered(because("unmetered", device=missing))
        return self._ledger.finished(pid, step_time.number, step_time.own_s, step_time.all_s, self._at) or 0.0

    def warm(self, pid: int, step_time: StepTime) -> None:
        """Record a finished request that is not counted."""
        self._ledger.add_step_times(pid, step_time.all_s, {})

    async def _sample(self) -> tuple[float, dict[str, float], float]:
        """Seconds since the last sample, watts by part, and busy seconds of all CPU cores."""
        usage = await asyncio.to_thread(self._sampler.sample)
        now = time.monotonic()
        seconds, self._at = now - self._at, now
        self._seen |= {part for part, _ in usage.parts}
        return seconds, dict(usage.parts), usage.cpu_frac * self._cores * seconds

    async def _count(self, pid: int, devices: frozenset[str], drawn: Drawn) -> None:
        seconds, parts, busy_s = await self._sample()
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
        """The first of the CPU and these devices that no meter has covered so far, or None."""
        parts = self._seen - {SYSTEM} or self._seen
        if parts == {SYSTEM}:
            return None
        if CPU not in parts:
            return because("the_processor")
        metered = (self._machine.device(one) for one in self._ids(names))
        return next((d.name for d in metered if d and d.id not in parts and d.kind not in _WITHIN), None)

    def _missing_meter_reason(self) -> Reason:
        places = looked_for(self._host.system)
        locked = tuple(m.name for m in meters(self._host, self._machine.devices) if not m.readable)
        if any(name.startswith("rapl") for name in locked):
            return because("meter_locked_until", places=places, locked=locked, command=READ_RAPL)
        return (
            because("meter_locked", places=places, locked=locked) if locked else because("no_meter", places=places)
        )

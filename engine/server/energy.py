"""Energy accounting of a running server: attributes the measured joules to requests."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import psutil

from devices.power import whole_w
from devices.process_memory import cpu_seconds
from devices.types import Usage
from engine.api import stats as api
from engine.core.types import Done
from engine.energy.budget import NO_METER
from engine.energy.energy_accounting import Active, JouleLedger
from engine.placement.placer import Placer
from engine.pool.loaded_model import LoadedModel
from engine.pool.pool import Pool
from engine.runner.protocol import Stats
from engine.server.utilization import Utilization

# The end of a response triggers a meter reading, unless the last one is more recent than this.
FRESH_S: Final = 0.25
# Shorter responses are too noisy for tokens per joule.
ENOUGH_TOKENS: Final = 32


class EnergyService:
    """Tracks which runners use which devices, and reads their meters."""

    def __init__(self, pool: Pool, utilization: Utilization | None, placer: Placer) -> None:
        self._pool = pool
        self._utilization = utilization
        self._placer = placer
        self.ledger = JouleLedger()
        self._cpu_s: dict[int, float] = {}
        self._worked: set[int] = set()
        self._newest: Usage | None = None
        self._cores = psutil.cpu_count() or 1
        self.also: Callable[[Usage, float], None] = lambda _usage, _seconds: None
        if utilization is not None:
            utilization.on_sample = self.sampled
            pool.hooks.metered = self.metered

    def sampled(self, usage: Usage, seconds: float) -> None:
        """Process a usage sample; `seconds` is the time since the previous one."""
        self._newest = usage
        self.also(usage, seconds)
        if not usage.parts:
            return  # no meter: read no runner times
        active = {}
        for model in self._pool.models:
            pid = model.runner.pid if model.runner is not None and model.ready else None
            if pid is not None and (used := self._active(model, pid)) is not None:
                active[pid] = used
        self._cpu_s = {pid: s for pid, s in self._cpu_s.items() if pid in active}
        busy_s = usage.cpu_frac * self._cores * seconds
        now = asyncio.get_running_loop().time()
        self.ledger.interval(now, seconds, dict(usage.parts), busy_s, self._cores, active)
        self._worked.clear()

    def _active(self, model: LoadedModel, pid: int) -> Active | None:
        cpu_s = cpu_seconds(pid)
        if cpu_s is None:
            return None
        before, self._cpu_s[pid] = self._cpu_s.get(pid, cpu_s), cpu_s
        held = model.placement.need.devices if model.placement is not None else ()
        assert model.runner is not None
        works = model.runner.active_requests > 0 or pid in self._worked
        return Active(model.id, cpu_s - before, frozenset(held) - {"cpu"}, works)

    def on_stats(self, pid: int, stats: Stats) -> None:
        """Process a runner's counters, which are read once per second while it works."""
        self.ledger.add_step_times(pid, stats.all_s, stats.own_s)

    async def metered(self, model: LoadedModel, done: Done) -> Done:
        """Add the energy to the end of a request, if it is measured."""
        step_time, runner = done.timings.step_time, model.runner
        if step_time is None or runner is None or runner.pid is None:
            return done
        self._worked.add(runner.pid)
        if not self.ledger.measured or self._utilization is None:
            return done
        await self._utilization.fresh(FRESH_S)
        now = asyncio.get_running_loop().time()
        joules = self.ledger.finished(runner.pid, step_time.number, step_time.own_s, step_time.all_s, now)
        if not joules:
            return done
        tokens = done.usage.completion_tokens
        self.ledger.count(model.id, joules, tokens)
        placed = model.placement
        if placed is not None and tokens >= ENOUGH_TOKENS:
            self._placer.history.record_energy(model.id, placed.device, placed.backend, tokens / joules)
        return msgspec.structs.replace(done, timings=msgspec.structs.replace(done.timings, joules=joules))

    def snapshot(self) -> api.Energy:
        """The energy part of the statistics."""
        if not self.ledger.measured:
            return api.Energy(note=NO_METER)
        parts = dict(self._newest.parts) if self._newest is not None else {}
        idle = {part: watts for part in parts if (watts := self.ledger.idle_w(part)) is not None}
        return api.Energy(
            measured=True,
            power_w=whole_w(parts),
            idle_w=idle,
            joules=round(self.ledger.total_j, 3),
            models=tuple(
                api.ModelEnergy(
                    model=name,
                    joules=round(tally.joules, 3),
                    tokens=tally.tokens,
                    requests=tally.requests,
                    tokens_per_joule=tally.tokens_per_joule,
                )
                for name, tally in self.ledger.tallies()
            ),
        )

"""Enforces the user's power limits: a mode for loads, a limit in watts, a battery budget.

Energy accounting attributes the measured joules to requests.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import psutil

from devices.battery import Battery, is_unplugged, read_battery
from devices.host import Host
from devices.host_real import RealHost
from devices.power import whole_w
from devices.power_saver import PERFORMANCE, SAVER, PowerProfile
from devices.process_memory import cpu_seconds
from devices.types import Usage
from engine.api import stats as api
from engine.api.machine import Mode, PowerLimits, PowerState
from engine.core.errors import BatterySpent
from engine.core.json_store import JsonStore
from engine.core.types import Done, GenerationRequest
from engine.energy.budget import NO_METER, BatteryBudget
from engine.energy.energy_accounting import Active, JouleLedger
from engine.energy.power_cap import CapController, RunnerLimits
from engine.message_catalog.reasons import because
from engine.placement.placer import Placer
from engine.pool.loaded_model import LoadedModel
from engine.pool.pool import Pool
from engine.runner import protocol
from engine.runner.process import RunnerProcess
from engine.runner.protocol import Stats
from engine.server.models import ServedModels
from engine.server.utilization import Utilization

# The battery driver updates its values only every few seconds.
BATTERY_S: Final = 5.0
# Work that starts again within this time keeps the profile.
LINGER_S: Final = 10.0
# Assumed response length of a request without max_tokens, for its expected energy.
USUAL_TOKENS: Final = 512


class PowerService:
    """Applies the limits: reads the meters and throttles the runners. `sampled` runs after the ledger's method."""

    def __init__(
        self,
        pool: Pool,
        models: ServedModels,
        ledger: JouleLedger,
        path: Path | None,
        host: Host | None = None,
        saver: PowerProfile | None = None,
        performance: PowerProfile | None = None,
    ) -> None:
        self._pool, self._models, self._ledger = pool, models, ledger
        self._host = host or RealHost()
        self._saver = saver or PowerProfile(SAVER)
        self._performance = performance or PowerProfile(PERFORMANCE)
        self._rested_s = 0.0
        self._store = JsonStore(path, PowerLimits, PowerLimits)
        self._started_mode: Mode = models.overrides.mode
        self._controller: CapController | None = None
        self._budget: BatteryBudget | None = None
        self._battery: Battery | None = None
        self._battery_age_s = BATTERY_S
        self._power_w: float | None = None
        self._paced: dict[int, RunnerLimits] = {}
        self._worked = False
        pool.hooks.admits = self.admits
        self._take(self._store.get())

    def set(self, limits: PowerLimits) -> None:
        """Set and store the limits; they also apply after the next start."""
        self._store.put(limits)
        self._take(limits)

    def _take(self, limits: PowerLimits) -> None:
        mode = limits.mode or self._started_mode
        self._models.overrides = msgspec.structs.replace(self._models.overrides, mode=mode)
        if mode == "quiet":
            self._saver.hold()
        else:
            self._saver.release()
        if mode != "fast" or limits.cap_w is not None:
            self._performance.release()
        self._controller = None
        self._budget = BatteryBudget(limits.battery_percent) if limits.battery_percent is not None else None
        self._battery_age_s = BATTERY_S
        if limits.cap_w is None:
            self._send_pace(RunnerLimits())

    def close(self) -> None:
        """Restore the system's power profile."""
        self._saver.release()
        self._performance.release()

    def sampled(self, usage: Usage, seconds: float) -> None:
        self._power_w = whole_w(dict(usage.parts))
        self._poll_battery(seconds)
        works = any(m.runner is not None and m.runner.active_requests for m in self._pool.loaded)
        self._speed_up(seconds, works=works)
        cap_w = self._store.get().cap_w
        if cap_w is None or self._power_w is None:
            return
        if self._controller is None or self._controller.cap_w != cap_w:
            most = max((m.settings.n_threads for m in self._pool.loaded), default=0)
            if not most:
                return
            self._controller = CapController(cap_w, most)
        worked, self._worked = self._worked, works
        if works == worked:  # skip samples in which work started or ended
            duty = self._controller.pace.duty if works else 0.0
            self._controller.look(seconds, self._power_w, duty)
        self._send_pace(self._controller.pace)

    def _speed_up(self, seconds: float, *, works: bool) -> None:
        """In mode "fast", hold the performance profile while a model works and the computer is plugged in."""
        limits = self._store.get()
        should_run = (limits.mode or self._started_mode) == "fast" and limits.cap_w is None and not is_unplugged()
        self._rested_s = 0.0 if works else self._rested_s + seconds
        if should_run and works:
            self._performance.hold()
        elif not should_run or self._rested_s >= LINGER_S:
            self._performance.release()

    def _poll_battery(self, seconds: float) -> None:
        self._battery_age_s += seconds
        if self._budget is not None and self._battery_age_s >= BATTERY_S:
            self._battery_age_s = 0.0
            self._battery = read_battery(self._host)
            if self._battery is not None:
                self._budget.look(self._battery)

    def _send_pace(self, pace: RunnerLimits) -> None:
        for model in self._pool.loaded:
            runner = model.runner
            if isinstance(runner, RunnerProcess) and self._paced.get(runner.pid, RunnerLimits()) != pace:
                runner.pace(protocol.Pace(threads=pace.threads, duty=pace.duty))
                self._paced[runner.pid] = pace
        alive = {m.runner.pid for m in self._pool.loaded if m.runner is not None}
        self._paced = {pid: paced for pid, paced in self._paced.items() if pid in alive}

    def admits(self, model: LoadedModel, request: GenerationRequest) -> None:
        """Raises: BatterySpent: the battery budget is too small for this request."""
        budget = self._budget
        if budget is None:
            return
        per_token = self._ledger.tally(model.id)
        tokens = request.max_tokens or USUAL_TOKENS
        expected_j = per_token.joules / per_token.tokens * tokens if per_token.tokens else 0.0
        if budget.refuses(expected_j):
            raise BatterySpent(budget.percent, budget.spent_percent or 0.0)

    def state(self) -> PowerState:
        """The limits and their current effect."""
        limits, controller = self._store.get(), self._controller
        notes = []
        if limits.cap_w is not None and self._power_w is None:
            notes.append(because("cap_not_held"))
        if limits.battery_percent is not None and self._battery is None:
            notes.append(because("no_battery"))
        budget, battery = self._budget, self._battery
        charge = battery.charge_frac if battery is not None else None
        return PowerState(
            limits=limits,
            mode=limits.mode or self._started_mode,
            saver=self._saver.held,
            performance=self._performance.held,
            measured=self._power_w is not None,
            power_w=self._power_w,
            threads=controller.pace.threads if controller is not None else None,
            duty_frac=controller.pace.duty if controller is not None else 1.0,
            battery_percent=round(100 * charge, 1) if charge is not None else None,
            spent_percent=budget.spent_percent if budget is not None else None,
            notes=tuple(notes),
        )


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
        devices = model.placement.need.devices if model.placement is not None else ()
        assert model.runner is not None
        works = model.runner.active_requests > 0 or pid in self._worked
        return Active(model.id, cpu_s - before, frozenset(devices) - {"cpu"}, works)

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

"""Power limits: runners are paced by meter readings, and requests are refused after the battery budget is used."""

import queue
from types import SimpleNamespace

import pytest

from devices.battery import SUPPLIES, Battery
from devices.recording import FORMAT, RecordedHost
from devices.types import Usage
from engine.api.machine import PowerLimits
from engine.core.errors import BatterySpent
from engine.core.types import GenerationRequest
from engine.energy.budget import BatteryBudget
from engine.energy.energy_accounting import JouleLedger
from engine.placement.types import PlacementLimits
from engine.pool.generation_hooks import GenerationHooks
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings
from engine.runner.service import DutyCycle
from engine.server.power import PowerService


class Paced(RunnerProcess):
    pid = 5
    active_requests = 1

    def __init__(self):
        self.paces = []

    def pace(self, pace):
        self.paces.append((pace.threads, pace.duty))


def desk(tmp_path, files=None, mode="balanced"):
    runner = Paced()
    model = SimpleNamespace(id="m", runner=runner, settings=LoadSettings(path="x", n_threads=8))
    pool = SimpleNamespace(loaded=[model], hooks=GenerationHooks())
    models = SimpleNamespace(overrides=PlacementLimits(mode=mode))
    host = RecordedHost({"format": FORMAT, "system": "linux", "files": files or {}})
    made = PowerService(pool, models, JouleLedger(), tmp_path / "power.json", host)
    return made, runner, model, models, host


def usage(watts):
    parts = (("cpu", watts),) if watts is not None else ()
    return Usage(at=0.0, cpu_frac=0.0, memory_used_bytes=0, memory_total_bytes=1, parts=parts)


def test_a_cap_paces_the_runners_and_lifting_it_frees_them(tmp_path):
    made, runner, _, _, _ = desk(tmp_path)
    made.set(PowerLimits(cap_w=20))
    runner.active_requests = 0
    for _ in range(3):
        made.sampled(usage(8.0), 1.0)
    runner.active_requests = 1
    for _ in range(8):
        made.sampled(usage(56.0), 1.0)
    threads, duty = runner.paces[-1]
    assert threads < 8 or duty < 0.5
    told = made.state()
    assert (told.threads, told.duty_frac) == (threads, duty)
    made.set(PowerLimits())
    assert runner.paces[-1] == (0, 1.0)


def test_without_a_meter_the_cap_is_said_not_to_hold(tmp_path):
    made, runner, _, _, _ = desk(tmp_path)
    made.set(PowerLimits(cap_w=20))
    made.sampled(usage(None), 1.0)
    assert runner.paces == []
    assert "no power meter here" in str(made.state().notes[0])


def test_the_mode_holds_for_later_loads_and_after_a_start(tmp_path):
    made, _, _, models, _ = desk(tmp_path)
    made.set(PowerLimits(mode="quiet"))
    assert models.overrides.mode == "quiet"
    again, _, _, models, _ = desk(tmp_path)
    assert (again.state().mode, models.overrides.mode) == ("quiet", "quiet")
    again.set(PowerLimits())
    assert models.overrides.mode == "balanced"


def test_a_battery_budget_refuses_what_does_not_fit_and_mains_lift_it(tmp_path):
    base = f"{SUPPLIES}/BAT0"
    files = {f"{base}/type": "Battery", f"{base}/status": "Discharging", f"{base}/energy_full": "50000000"}
    made, _, model, _, host = desk(tmp_path, {**files, f"{base}/energy_now": "40000000"})
    made.set(PowerLimits(battery_percent=2))  # 1 Wh: 3,600 J
    made._ledger.count("m", 1000.0, 1000)  # one joule per token
    made.sampled(usage(None), 5.0)
    made.admits(model, GenerationRequest(prompt="x", max_tokens=3000))
    with pytest.raises(BatterySpent):
        made.admits(model, GenerationRequest(prompt="x", max_tokens=4000))
    host._parts["files"][f"{base}/energy_now"] = "39500000"  # half of it is used
    made.sampled(usage(None), 5.0)
    assert made.state().spent_percent == pytest.approx(1.0)
    with pytest.raises(BatterySpent, match=r"1\.0 % are"):
        made.admits(model, GenerationRequest(prompt="x", max_tokens=3000))
    host._parts["files"][f"{base}/status"] = "Charging"
    made.sampled(usage(None), 5.0)
    made.admits(model, GenerationRequest(prompt="x", max_tokens=4000))


@pytest.mark.parametrize("percent", [1.0, 3.0])
def test_requests_in_a_row_end_within_the_budget(percent):
    full_j, charge_j, budget = 180_000.0, 90_000.0, BatteryBudget(percent)
    begun = charge_j
    budget.look(Battery(discharging=True, charge_j=charge_j, full_j=full_j))
    for _ in range(1000):
        if budget.refuses(expected_j=150.0):
            break
        charge_j -= 150.0 * 1.05  # slightly more than expected
        budget.look(Battery(discharging=True, charge_j=charge_j, full_j=full_j))
    spent = (begun - charge_j) / full_j * 100
    assert percent - 0.2 <= spent <= percent + 0.01


def test_rests_take_their_share_and_end_when_somebody_speaks():
    duty_cycle, inbox = DutyCycle(), queue.SimpleQueue()
    duty_cycle.set(0.25)
    duty_cycle.stepped(0.01)
    assert duty_cycle.owed_s == pytest.approx(0.03)
    while duty_cycle.owed_s:
        assert duty_cycle.pause(inbox) is None
    duty_cycle.stepped(1.0)
    inbox.put("cancel")
    assert duty_cycle.pause(inbox) == "cancel"
    duty_cycle.set(1.0)
    assert duty_cycle.owed_s == 0.0

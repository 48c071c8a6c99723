"""Joules of a measurement, with a simulated meter that charges for what the CPU really computes."""

import asyncio

import pytest

from devices.power import HWMON
from devices.recording import FORMAT, RecordedHost
from engine.energy.meter import Drawn
from engine.job_kinds.bench.run import _meter, bench
from engine.runner.protocol import LoadSettings
from tests.support.machines.simulated_meter import MACHINE, REST_W, WORK_W, Metered
from tests.support.unhindered import Stopwatch


def measured(model):
    """The meter, and the result of a concurrent measurement."""
    host = Metered()
    found = asyncio.run(
        bench(
            LoadSettings(path=str(model), n_threads=1),
            model="x",
            lengths=(256,),
            parallel=(1,),
            repeats=4,
            stand_in=False,
            step=lambda _: None,
            tokens=200,
            machine=MACHINE,
            host=host,
        )
    )
    return host, found


@pytest.mark.process
@pytest.mark.timeout(400)
def test_a_measurement_tells_its_tokens_a_joule_beyond_the_rest(bundled_model, monkeypatch):
    monkeypatch.setattr(
        "devices.sensors.UsageSampler._cpu_frac", lambda _: 0.0
    )  # nothing else runs on that computer
    for _ in range(4):  # on a busy machine, time passes between the meter's clock and the reader's
        host, found = measured(bundled_model)
        (point,) = found.points
        worked = [cpu_s for _, cpu_s in host.looks if cpu_s > 0]  # the checks for other load saw no child
        tokens_per_joule = 4 * 201 / (WORK_W * (worked[-1] - worked[0]))
        measurement = (found.idle_w, point.tokens_per_joule)
        if measurement == pytest.approx((REST_W, tokens_per_joule), rel=0.3):
            break
    assert measurement == pytest.approx((REST_W, tokens_per_joule), rel=0.3)
    assert point.power_w > REST_W


def recorded(files=None):
    return RecordedHost({"format": FORMAT, "system": "linux", "files": files or {}})


def test_without_a_meter_nothing_is_told_and_little_time_is_lost():
    for machine in (MACHINE, None):
        begun = Stopwatch()
        assert asyncio.run(_meter(recorded(), machine)) is None
        assert begun.seconds() < 2.5


def test_on_a_busy_computer_watts_are_told_and_no_joules(monkeypatch):
    monkeypatch.setattr("devices.sensors.UsageSampler._cpu_frac", lambda _: 0.9)
    monkeypatch.setattr("engine.job_kinds.bench.run.REST_S", 0.3)
    monkeypatch.setattr("engine.energy.meter.EVERY_S", 0.01)
    monitor = f"{HWMON}/hwmon3"
    files = {
        f"{monitor}/name": "zenpower",
        f"{monitor}/power1_label": "SVI2_P_Core",
        f"{monitor}/power1_input": "12000000",
    }

    async def measured():
        energy = await _meter(recorded(files), MACHINE)
        async with energy.during(1) as drawn:
            await asyncio.sleep(0.05)
        return energy.idle_w, drawn

    rest_w, drawn = asyncio.run(measured())
    assert rest_w is None
    assert drawn.watts == pytest.approx(12.0)
    assert drawn.tokens_per_joule(40) is None


def test_what_was_drawn_is_told_where_it_is_known():
    assert Drawn(30.0, 2.0).watts == 15.0
    assert Drawn(30.0, 2.0, 20.0).tokens_per_joule(40) == 2.0
    assert Drawn(30.0, 2.0).tokens_per_joule(40) is None
    assert Drawn().watts is None

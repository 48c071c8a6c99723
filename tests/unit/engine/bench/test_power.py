"""Joules of a measurement: a simulated meter that charges for what the processor really computes."""

import asyncio

import pytest
from simulated_meter import MACHINE, REST_W, WORK_W, Metered
from unhindered import Stopwatch

from devices.recording import FORMAT, RecordedHost
from engine.bench.power import Drawn, Power
from engine.bench.run import bench
from engine.runner.protocol import LoadSettings


def measured(model):
    """The meter, and what a measurement beside it found."""
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
            tokens=400,
            machine=MACHINE,
            host=host,
        )
    )
    return host, found


@pytest.mark.process
@pytest.mark.timeout(400)
def test_a_measurement_tells_its_tokens_a_joule_beyond_the_rest(bundled_model):
    for _ in range(4):  # a busy machine lets time pass between the meter's clock and that of who reads it
        host, found = measured(bundled_model)
        if found.rest_w == pytest.approx(REST_W, rel=0.3):
            break
    assert found.rest_w == pytest.approx(REST_W, rel=0.3)
    (point,) = found.points
    assert point.power_w > REST_W
    # Behind the looks at the rest, which saw no child. A busy machine lets time pass between meter and clock.
    worked = [cpu_s for _, cpu_s in host.looks if cpu_s > 0]
    assert point.tokens_per_joule == pytest.approx(4 * 401 / (WORK_W * (worked[-1] - worked[0])), rel=0.3)


def test_without_a_meter_nothing_is_told_and_little_time_is_lost():
    bare = RecordedHost({"format": FORMAT, "system": "linux", "files": {}})
    for power in (Power(bare, MACHINE), Power(bare, None)):
        begun = Stopwatch()
        assert asyncio.run(power.rest_w()) is None
        assert begun.seconds() < 2.5


def test_a_rest_that_is_not_known_is_not_taken_for_nothing():
    assert Drawn(30.0, 2.0).watts == 15.0
    assert Drawn(30.0, 2.0).tokens_per_joule(40, 5.0) == 2.0
    assert Drawn(30.0, 2.0).tokens_per_joule(40, None) is None
    assert Drawn(30.0, 2.0).tokens_per_joule(40, 15.0) is None
    assert Drawn().watts is None

"""From meters to the response: a finished request gets its joules, and learned rates are stored."""

import asyncio
import os
from types import SimpleNamespace

import pytest

from devices.types import Usage
from engine.core.types import Done, StepTime, Timings
from engine.core.types import Usage as Tokens
from engine.energy.budget import NO_METER
from engine.placement.history import PlacementHistory
from engine.pool.generation_hooks import GenerationHooks
from engine.runner.protocol import Stats
from engine.server.openai.stream import timings_body
from engine.server.power import EnergyService


class Meters:
    """Replaces the sampling once per second; the test triggers it."""

    def __init__(self):
        self.on_sample = None
        self.looks = 0

    async def fresh(self, least_s):
        self.looks += 1


def usage(watts, cpu_frac=0.0):
    parts = (("cpu", watts),) if watts is not None else ()
    return Usage(at=0.0, cpu_frac=cpu_frac, memory_used_bytes=0, memory_total_bytes=1, parts=parts)


def desk_with(active=1):
    runner = SimpleNamespace(pid=os.getpid(), active_requests=active)
    placed = SimpleNamespace(device="cpu", backend="cpu", need=SimpleNamespace(devices=("cpu",)))
    model = SimpleNamespace(id="m", runner=runner, ready=True, placement=placed)
    pool, meters = SimpleNamespace(models=[model], hooks=GenerationHooks()), Meters()
    placer = SimpleNamespace(history=PlacementHistory(None))
    return EnergyService(pool, meters, placer), pool, meters, model, placer


def done(own_s, tokens=100):
    step_time = StepTime(number=4, own_s=own_s, all_s=own_s)
    return Done(finish_reason="stop", usage=Tokens(completion_tokens=tokens), timings=Timings(step_time=step_time))


def test_an_answer_is_told_its_joules_and_its_placement_learns():
    async def run():
        desk, pool, meters, model, placer = desk_with(active=0)
        assert pool.hooks.metered == desk.metered
        for _ in range(3):
            meters.on_sample(usage(10.0), 1.0)
        model.runner.active_requests = 1
        used_s = desk._cpu_s[os.getpid()]
        desk._cpu_s[os.getpid()] = used_s - 1.0  # one second of CPU time in this second
        desk._cores = 1
        meters.on_sample(usage(30.0, cpu_frac=1.0), 1.0)
        desk.on_stats(
            os.getpid(),
            Stats(
                id=1,
                steps=1,
                prompt_tokens=0,
                generated_tokens=0,
                cached_tokens=0,
                active=1,
                waiting=0,
                kv_cells_used=0,
                kv_cells_total=0,
                rss_bytes=0,
                all_s=1.0,
                own_s={4: 1.0},
            ),
        )
        ended = await desk.metered(model, done(1.0))
        assert meters.looks == 1
        assert ended.timings.joules == pytest.approx(20.0, rel=0.05)
        body = timings_body(ended)
        assert body["tokens_per_joule"] == pytest.approx(5.0, rel=0.05)
        assert placer.history.tokens_per_joule("m", "cpu", "cpu") == pytest.approx(5.0, rel=0.05)
        told = desk.snapshot()
        assert told.measured
        assert told.idle_w == {"cpu": 10.0}
        assert [(m.model, m.tokens) for m in told.models] == [("m", 100)]

    asyncio.run(run())


def test_without_a_meter_answers_are_as_they_were_and_it_is_said():
    async def run():
        desk, _, meters, model, placer = desk_with()
        meters.on_sample(usage(None, cpu_frac=0.5), 1.0)
        ended = done(1.0)
        assert await desk.metered(model, ended) is ended
        assert meters.looks == 0
        assert "joules" not in timings_body(ended)
        assert desk.snapshot().note == NO_METER
        assert placer.history.tokens_per_joule("m", "cpu", "cpu") is None

    asyncio.run(run())

"""Sampling continues after a sample fails."""

import asyncio
import errno
import os
from types import SimpleNamespace

from engine.runner.protocol import Stats
from engine.server.state import WorkHistory
from engine.server.utilization import Utilization


class Machine:
    devices = ()


def test_a_moment_without_descriptors_does_not_end_the_samples():
    async def run():
        calls = 0
        enough = asyncio.Event()

        async def also():
            nonlocal calls
            calls += 1
            if calls == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            enough.set()

        utilization = Utilization(Machine, every_s=0.01)
        utilization.also = also
        utilization.start()
        try:
            await asyncio.wait_for(enough.wait(), 60)
        finally:
            await utilization.stop()

    asyncio.run(run())


def test_the_samples_may_be_read_from_any_thread():
    async def run():
        sampled = asyncio.Event()

        async def also():
            sampled.set()

        utilization = Utilization(Machine, every_s=0.01)
        utilization.also = also
        utilization.start()
        try:
            await asyncio.wait_for(sampled.wait(), 60)
            assert await asyncio.to_thread(utilization.last, 60)
            assert await asyncio.to_thread(utilization.newest) is not None
        finally:
            await utilization.stop()

    asyncio.run(run())


def test_an_idle_runner_is_queried_once_after_each_use_and_a_busy_one_with_each_sample():
    async def run():
        queried = []

        async def stats():
            queried.append(len(queried))
            return Stats(
                id=1,
                steps=1,
                prompt_tokens=10 * len(queried),
                generated_tokens=0,
                cached_tokens=0,
                active=0,
                waiting=0,
                kv_cells_used=0,
                kv_cells_total=0,
                rss_bytes=0,
            )

        runner = SimpleNamespace(pid=os.getpid(), active_requests=1, stats=stats)
        model = SimpleNamespace(runner=runner, ready=True, last_used=1.0, waiting=0)
        history = WorkHistory(SimpleNamespace(models=[model]))
        for active, last_used, expected in ((1, 1.0, 1), (1, 1.0, 2), (0, 2.0, 3), (0, 2.0, 3), (0, 3.0, 4)):
            runner.active_requests, model.last_used = active, last_used
            await history.sample()
            assert len(queried) == expected
        assert [work.prompt_tokens for work in history.last(60)] == [10, 20, 30, 30, 40]

    asyncio.run(run())

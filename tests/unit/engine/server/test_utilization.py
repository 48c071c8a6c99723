"""Sampling continues after a sample fails."""

import asyncio
import errno

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

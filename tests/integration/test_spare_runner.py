"""The warm runner for a server's first model: real child processes, used, discarded or replaced."""

import asyncio

import psutil
import pytest

from engine.core.errors import BadModelFile, RunnerDied
from engine.runner.process import RunnerProcess, SpareRunner
from engine.runner.protocol import LoadSettings
from tests.support.servers import wait_for


class Counted:
    """Starts real runners and records them."""

    def __init__(self):
        self.started = []

    async def __call__(self, engine, path):
        runner = await RunnerProcess.start(engine, path)
        self.started.append(runner)
        return runner


async def until(condition):
    await asyncio.to_thread(wait_for, condition)


def run(work, **options):
    """Run `work(spare, counted)` with a warm runner; end everything that was started."""

    async def main():
        start = Counted()
        spare = SpareRunner(start, **options)
        spare.prepare()
        try:
            return await work(spare, start)
        finally:
            spare.end()
            await asyncio.gather(*(r.stop() for r in start.started))

    return asyncio.run(main())


def test_the_first_load_takes_it_and_later_ones_start_their_own(bundled_model, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and nothing else")

    async def work(spare, start):
        first = await spare.take("llama", str(bundled_model))
        assert start.started == [first]
        await first.load(LoadSettings(path=str(bundled_model), n_ctx=256, n_threads=1))
        second = await spare.take("llama", str(broken))
        assert start.started == [first, second]
        with pytest.raises(BadModelFile) as caught:
            await second.load(LoadSettings(path=str(broken), n_ctx=256, n_threads=1))
        assert caught.value.path == str(broken)

    run(work)


def test_two_loads_at_once_get_one_each():
    async def work(spare, start):
        one, other = await asyncio.gather(spare.take("llama", "a"), spare.take("llama", "b"))
        assert one is not other
        assert len(start.started) == 2
        assert all(r.alive for r in (one, other))

    run(work)


def test_one_that_died_meanwhile_is_replaced():
    async def work(spare, start):
        await until(lambda: start.started)
        psutil.Process(start.started[0].pid).kill()
        await until(lambda: not start.started[0].alive)
        assert (await spare.take("llama", "a")).alive

    run(work)


def test_one_that_cannot_start_is_the_loads_own_to_tell():
    async def cannot(engine, path):
        raise RunnerDied(1, "no python", ())

    async def main():
        spare = SpareRunner(cannot)
        spare.prepare()
        with pytest.raises(RunnerDied, match="no python"):
            await spare.take("llama", "a")

    asyncio.run(main())


@pytest.mark.parametrize("give_up", ["another engine", "time", "the server's end"])
def test_nobody_is_left_behind(give_up):
    async def work(spare, start):
        await until(lambda: start.started)
        if give_up == "another engine":
            await spare.take("onnx", "a")
        elif give_up == "the server's end":
            spare.end()
        await until(lambda: not start.started[0].alive)
        assert not psutil.pid_exists(start.started[0].pid)

    run(work, unused_s=0.3 if give_up == "time" else 60.0)


def test_a_cancelled_load_leaves_it_for_the_next():
    async def work(spare, start):
        load = asyncio.create_task(spare.take("llama", "a"))
        await asyncio.sleep(0)
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
        runner = await spare.take("llama", "b")
        assert start.started == [runner]

    run(work)

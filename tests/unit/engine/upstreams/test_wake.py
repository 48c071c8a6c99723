"""What a task waits for between two pieces of an answer: when it goes on, and that it can be cancelled there."""

import asyncio
from contextvars import ContextVar

import pytest

from engine.upstreams.wake import Wake

mine = ContextVar("mine", default="nobody's")


class Waiting:
    """A task that waits again and again, and what it has seen."""

    def __init__(self):
        self.wake, self.seen = Wake(), []
        self.task = asyncio.create_task(self._wait())

    async def _wait(self):
        mine.set("its own")
        while True:
            await self.wake
            self.seen.append((mine.get(), asyncio.current_task() is self.task))


def test_it_goes_on_within_set_where_the_loop_calls():
    async def main():
        waiting, within = Waiting(), []
        await asyncio.sleep(0)

        def called():
            for _ in range(3):
                waiting.wake.set()
                within.append(len(waiting.seen))

        asyncio.get_running_loop().call_soon(called)
        await asyncio.sleep(0.01)
        waiting.task.cancel()
        return within, waiting.seen

    within, seen = asyncio.run(main())
    assert within == [1, 2, 3]
    assert seen == [("its own", True)] * 3
    assert mine.get() == "nobody's"


def test_it_goes_on_a_turn_later_where_a_task_calls():
    async def main():
        waiting = Waiting()
        await asyncio.sleep(0)
        waiting.wake.set()
        at_once = len(waiting.seen)
        await asyncio.sleep(0)
        waiting.task.cancel()
        return at_once, len(waiting.seen)

    assert asyncio.run(main()) == (0, 1)


def test_set_before_it_waits_ends_the_next_wait_once():
    async def main():
        wake = Wake()
        wake.set()
        wake.set()
        await asyncio.wait_for(_for(wake), 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_for(wake), 0.01)
        wake.set()
        wake.clear()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_for(wake), 0.01)

    asyncio.run(main())


async def _for(wake):
    await wake


@pytest.mark.parametrize("first", ["cancel", "set"])
def test_it_is_cancelled_while_it_waits_and_when_it_was_just_told(first):
    async def main():
        waiting = Waiting()
        await asyncio.sleep(0)
        for act in (
            (waiting.task.cancel, waiting.wake.set)
            if first == "cancel"
            else (waiting.wake.set, waiting.task.cancel)
        ):
            act()
        await asyncio.wait((waiting.task,), timeout=1)
        again = asyncio.create_task(_for(waiting.wake))
        await asyncio.sleep(0)
        waiting.wake.set()
        await asyncio.wait_for(again, 1)
        return waiting.task.cancelled(), waiting.seen

    assert asyncio.run(main()) == (True, [])


def test_what_it_raises_is_its_own():
    async def main():
        wake = Wake()

        async def fails():
            await wake
            raise ValueError("its own")

        task = asyncio.create_task(fails())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(wake.set)
        with pytest.raises(ValueError, match="its own"):
            await asyncio.wait_for(task, 1)

    asyncio.run(main())

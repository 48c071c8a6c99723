"""Merges several generations of one request into one stream of events."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def merge(generations: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """Events in order of arrival, with the index of their generation. Closing it early cancels all."""
    if len(generations) == 1:
        async for event in generations[0]:
            yield 0, event
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()

    async def drain(index: int, generation: AsyncIterator[T]) -> None:
        try:
            async for event in generation:
                queue.put_nowait((index, event))
            queue.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - carried to the consumer, which raises it
            queue.put_nowait(error)

    tasks = [asyncio.create_task(drain(i, g)) for i, g in enumerate(generations)]
    open_count = len(tasks)
    try:
        while open_count:
            item = await queue.get()
            if item is None:
                open_count -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

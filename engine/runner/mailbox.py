"""Where the events of one request wait for whoever consumes them."""

import asyncio
from collections import deque

from devices.errors import TesseraError
from engine.core.types import Event


class Mailbox:
    """Events of one request on their way from the reader to its consumer."""

    def __init__(self) -> None:
        self.items: deque[Event | TesseraError] = deque()
        self._wake: asyncio.Future[None] | None = None

    def put(self, item: Event | TesseraError) -> None:
        """Add an event; wakes the consumer."""
        self.items.append(item)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def get(self) -> Event | TesseraError:
        """The next event, when there is one."""
        while not self.items:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self.items.popleft()

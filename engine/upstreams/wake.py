"""What one task waits for, again and again: it goes on within `set`, not a turn of the event loop later."""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Wake:
    """An event of one waiting task, as the future-like object that `asyncio.isfuture` describes.

    A future has its task go on in the loop's next turn, before which the loop asks the system for news again: for a
    token that comes alone that is a system call and a dozen functions more than the token needs.
    """

    _asyncio_future_blocking = False  # asyncio's tasks know by it what they may wait for

    def __init__(self) -> None:
        self._is_set = self._cancelled = False
        self._waiting: tuple[Callable[[Any], object], Context | None] | None = None

    def set(self) -> None:
        """Whoever waits goes on, now where the loop calls and soon where a task does; or the next wait ends."""
        self._is_set = True
        if self._waiting is None:
            return
        (go_on, context), self._waiting = self._waiting, None
        if context is not None and asyncio.current_task() is None:
            context.run(go_on, self)
        else:
            self.get_loop().call_soon(go_on, self, context=context)

    def clear(self) -> None:
        """Forget that it was set."""
        self._is_set = False

    def __await__(self) -> Generator["Wake", None, None]:
        if not self._is_set:
            self._asyncio_future_blocking = True
            yield self
        self._is_set = False

    # ---- for the task that waits

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the task."""
        return asyncio.get_running_loop()

    def add_done_callback(self, go_on: Callable[[Any], object], *, context: Context | None = None) -> None:
        """The task waits from now on."""
        self._waiting = go_on, context

    def cancel(self, msg: object = None) -> bool:
        """The task is cancelled; False: it goes on already, and learns it then."""
        del msg
        if self._waiting is None:
            return False
        (go_on, context), self._waiting = self._waiting, None
        self._cancelled = True
        self.get_loop().call_soon(go_on, self, context=context)
        return True

    def result(self) -> None:
        """What waiting came to. Raises: CancelledError."""
        if self._cancelled:
            self._cancelled = False
            raise asyncio.CancelledError

"""Most routes are made after the server answers: importing them takes longer than a first answer may."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

# A program that starts a server asks it for something at once; importing beside that would take a core from it.
AFTER_S: Final = 1.0
LOOK_S: Final = 0.2
AGAIN_S: Final = 5.0

log = logging.getLogger(__name__)


class LateRoutes:
    """An application that `build` makes, in a thread, when it is first asked for something or made `ready`."""

    def __init__(self, build: Callable[[], ASGIApp]) -> None:
        self._build = build
        self._app: ASGIApp | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app or await self.ready()
        await app(scope, receive, send)

    async def ready(self) -> ASGIApp:
        """The application, made now if it was not."""
        async with self._lock:
            if self._app is None:
                self._app = await asyncio.to_thread(self._build)
            return self._app

    async def ready_when_idle(self, busy: Callable[[], bool]) -> None:
        """Make it as soon as nobody waits for anything else."""
        await asyncio.sleep(AFTER_S)
        while busy():  # noqa: ASYNC110 - several things end it, none of which should know of this
            await asyncio.sleep(LOOK_S)
        while True:
            try:
                await self.ready()
            except OSError as error:  # no descriptor for a module: whoever asks tries again, and so does this
                log.warning("the other routes are not there yet: %s", error)
                await asyncio.sleep(AGAIN_S)
            else:
                return

"""One open session with a worker: the local port, its heartbeat, and the detection of its loss."""

import asyncio
from collections.abc import Callable
from typing import Final

from engine.message_catalog.reasons import because
from engine.remotes import protocol
from engine.remotes.errors import RemoteFault
from engine.remotes.tunnel import Tunnel
from engine.remotes.types import RemoteFacts

# A link is slow if this many replies in a row take this many times longer than when it was measured.
SLOW_BEATS: Final = 3
SLOW_FACTOR: Final = 5.0
SLOW_LEAST_S: Final = 0.1


class Session:
    """An open session. `lost` is set when it ends by itself.

    `notice` gets the reason for that end, and also a fault when the link becomes slow.
    """

    def __init__(self, tunnel: Tunnel, measured_rtt_s: float, notice: Callable[[RemoteFault], None]) -> None:
        self.name = tunnel.name
        self.port = 0
        self.rtt_s = 0.0
        self.held_bytes = 0
        self.fault: RemoteFault | None = None
        self.lost = asyncio.Event()
        self.slow = False
        self._tunnel = tunnel
        self._limit_s = max(SLOW_LEAST_S, SLOW_FACTOR * measured_rtt_s)
        self._late = 0
        self._notice = notice
        self._ready = asyncio.Event()
        self._closing = False
        self._facts: RemoteFacts | None = None
        self._listening = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        """Process id of the tunnel."""
        return self._tunnel.pid

    async def opened(self) -> RemoteFacts:
        """Facts that the worker reported, once its session listens. Raises: RemoteFault."""
        ready, ended = asyncio.create_task(self._ready.wait()), asyncio.create_task(self.lost.wait())
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            ended.cancel()
        if self.fault is not None:
            raise self.fault
        assert self._facts is not None
        return self._facts

    async def _listen(self) -> None:
        try:
            async for message in self._tunnel.messages():
                if isinstance(message, protocol.Checked):
                    self._facts = message.facts
                elif isinstance(message, protocol.Opened):
                    self.port = message.port
                    self._ready.set()
                elif isinstance(message, protocol.Beat):
                    self._beat(message)
            fault = RemoteFault(self.name, "lost", because("tunnel_ended"))
        except RemoteFault as error:
            fault = error
        if not self._closing:
            self.fault = fault
            self.lost.set()
            if self._ready.is_set():
                self._notice(fault)

    def _beat(self, beat: protocol.Beat) -> None:
        self.rtt_s, self.held_bytes = beat.rtt_s, beat.held_bytes
        self._late = self._late + 1 if beat.rtt_s > self._limit_s else 0
        if self._late == SLOW_BEATS and not self.slow:
            self.slow = True
            usual, now = self._limit_s / SLOW_FACTOR, beat.rtt_s
            self._notice(RemoteFault(self.name, "slow", because("became_slow", now_s=now, usual_s=usual)))

    async def close(self) -> None:
        """End the session: the tunnel, its local port, and the worker's process on the remote host."""
        self._closing = True
        await self._tunnel.close()
        await self._listening

    def kill(self) -> None:
        """End the session without waiting."""
        self._closing = True
        self._tunnel.kill()

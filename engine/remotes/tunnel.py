"""The server's side of the tunnel process, which sends a command and reads messages until the process ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from devices.child_command import child_command
from devices.msgspec_lock import learned
from engine.message_catalog.reasons import because
from engine.remotes import protocol
from engine.remotes.errors import RemoteFault

# Without its input the process ends by itself; after this time it is killed.
END_S: Final = 2.0
_MESSAGES: Final = msgspec.json.Decoder(learned(protocol.Message))


class Tunnel:
    """Created by `start`; `messages` yields its messages and raises the error that ended it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    async def start(cls, order: protocol.Order) -> "Tunnel":
        """Start the process. It has not contacted the worker yet."""
        process = await asyncio.create_subprocess_exec(
            *child_command("engine.remotes.tunnel_child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=protocol.LONGEST_LINE,
        )
        assert process.stdin is not None
        process.stdin.write(protocol.line(order))
        return cls(order.remote.name, process)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    async def messages(self) -> AsyncIterator[protocol.Message]:
        """Messages until the process ends. Raises: RemoteFault: why it ended."""
        stream = self._process.stdout
        assert stream is not None
        while True:
            try:
                raw = await stream.readline()
                message = _MESSAGES.decode(raw) if raw else None
            except (ValueError, msgspec.MsgspecError) as error:
                raise RemoteFault(self.name, "lost", because("tunnel_unreadable", why=str(error))) from error
            if message is None:
                return
            if isinstance(message, protocol.Failed):
                raise RemoteFault(self.name, message.state, message.reason)
            yield message

    async def close(self) -> None:
        """End the process, and with it the connection, the local port and the worker's session."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), END_S)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

"""The tunnel's process, as the server sees it: an order, and what it says until it ends."""

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

# Without its input the process ends by itself; one that does not is ended.
END_S: Final = 2.0
_MESSAGES: Final = msgspec.json.Decoder(learned(protocol.Message))


class Tunnel:
    """Made by `start`; `messages` yields what it says, and raises what ended it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process

    @classmethod
    async def start(cls, order: protocol.Order) -> "Tunnel":
        """Begin. Nothing is known of the other side yet."""
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
        """The child's."""
        return self._process.pid

    async def messages(self) -> AsyncIterator[protocol.Message]:
        """What it says until it ends. Raises: RemoteFault: why it ended."""
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
        """End it, and with it the connection, the near end's port and the worker's session."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), END_S)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

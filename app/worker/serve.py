"""The worker's server: on loopback, one connection per session; each session has a separate RPC process."""

import asyncio
import contextlib
import socket
from typing import Final

import msgspec

from app.worker.facts import FactsOf
from devices.child_command import child_command
from devices.msgspec_lock import learned
from devices.process_memory import process_memory
from engine.remotes import protocol

LOOPBACK: Final = "127.0.0.1"
# The client sends a request every second. If it is silent for this long, its session ends.
GONE_S: Final = 3 * protocol.SILENT_S
START_S: Final = 30.0
MOST_SESSIONS: Final = 16
_CHUNK: Final = 1 << 18


class Worker:
    """Serves until cancelled. `port` is set after it has started to listen."""

    def __init__(self, facts: FactsOf, threads: int) -> None:
        self._facts, self._threads = facts, threads
        self._sessions: set[asyncio.subprocess.Process] = set()
        self.port = 0

    async def serve(self, port: int) -> None:
        """Listen only on loopback. Raises: OSError: the port is in use."""
        server = await asyncio.start_server(self._talk, LOOPBACK, port, limit=protocol.LONGEST_LINE)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            try:
                await server.serve_forever()
            finally:
                for session in tuple(self._sessions):
                    session.kill()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session: asyncio.subprocess.Process | None = None
        try:
            while True:
                raw = await asyncio.wait_for(reader.readline(), GONE_S)
                if not raw.endswith(b"\n"):
                    return
                try:
                    ask = msgspec.json.decode(raw, type=learned(protocol.Ask))
                except msgspec.MsgspecError:
                    return
                if session is not None and session.returncode is not None:
                    writer.write(
                        protocol.line(
                            protocol.WorkerReply(error="llama.cpp on the remote host stopped during its work")
                        )
                    )
                    await writer.drain()
                    return
                if ask.do == "open" and session is None:
                    session, answer = await self._open()
                else:
                    answer = await self._answer(ask, reader, session)
                writer.write(protocol.line(answer))
                if ask.do == "source":
                    await self._send(writer, min(ask.num_bytes, protocol.MOST_MEASURED_BYTES))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, ValueError):
            return  # the client is gone or sends no valid lines
        finally:
            if session is not None:
                await self._end(session)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(
        self, ask: protocol.Ask, reader: asyncio.StreamReader, session: asyncio.subprocess.Process | None
    ) -> protocol.WorkerReply:
        if ask.do == "facts":
            resident = sum(_resident_bytes(s) for s in self._sessions)
            return protocol.WorkerReply(facts=await asyncio.to_thread(self._facts.now, resident))
        if ask.do == "sink":
            remaining = min(ask.num_bytes, protocol.MOST_MEASURED_BYTES)
            while remaining > 0:
                remaining -= len(await reader.readexactly(min(remaining, _CHUNK)))
        return protocol.WorkerReply(held_bytes=_resident_bytes(session) if session is not None else 0)

    async def _send(self, writer: asyncio.StreamWriter, num_bytes: int) -> None:
        chunk = bytes(_CHUNK)
        while num_bytes > 0:
            writer.write(chunk[:num_bytes])
            num_bytes -= len(chunk)
            await writer.drain()

    async def _open(self) -> tuple[asyncio.subprocess.Process | None, protocol.WorkerReply]:
        """Start llama.cpp's RPC server on a separate port for one client."""
        if len(self._sessions) >= MOST_SESSIONS:
            return None, protocol.WorkerReply(error=f"it already has {MOST_SESSIONS} sessions")
        port = _free_port()
        session = await asyncio.create_subprocess_exec(
            *child_command("engine.runner.llama.rpc_worker", str(port), str(self._threads), "attached"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self._sessions.add(session)
        try:
            async with asyncio.timeout(START_S):
                # Poll, because there is no event when another process opens its port.
                while session.returncode is None and not await _listens(port):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            await self._end(session)
        if session.returncode is not None:
            self._sessions.discard(session)
            return None, protocol.WorkerReply(error="llama.cpp's RPC server did not start on the remote host")
        return session, protocol.WorkerReply(port=port, held_bytes=_resident_bytes(session))

    async def _end(self, session: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            session.kill()
        await session.wait()
        self._sessions.discard(session)


def _resident_bytes(session: asyncio.subprocess.Process) -> int:
    measured = process_memory(session.pid) if session.returncode is None else None
    return measured.rss_bytes if measured is not None else 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True

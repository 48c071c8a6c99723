"""The single entry point for workers: add, check, open sessions, and recheck lost ones."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from engine.core.errors import InputFault
from engine.message_catalog.reasons import Reason, because
from engine.remotes import protocol
from engine.remotes.errors import NotAdded, RemoteFault, UnknownHostKey
from engine.remotes.llama_cpp_build import kernel_name
from engine.remotes.registry import RemoteRegistry, check_names
from engine.remotes.session import Session
from engine.remotes.tunnel import Tunnel
from engine.remotes.types import Remote, Seen

log = logging.getLogger(__name__)
# A lost worker is checked again after these seconds; the last value repeats.
LOOK_AGAIN_S: Final = (5.0, 10.0, 20.0, 40.0, 60.0)


class Remotes:
    """Manages all workers. Use from one event loop."""

    def __init__(self, registry: RemoteRegistry, kernel: str | None = None) -> None:
        self.registry = registry
        self._kernel = kernel
        self._looking: dict[str, asyncio.Task[None]] = {}

    @property
    def kernel(self) -> str:
        """The commit that a worker must have."""
        return kernel_name() if self._kernel is None else self._kernel

    async def add(self, remote: Remote, expected: str = "") -> Seen:
        """Accept the host's key and store the worker; return the result of a first check.

        `expected` is the fingerprint that the user confirmed; without one only a key in known_hosts is accepted.
        Raises: UnknownHostKey; InputFault: the key is another one; NotAdded: the host cannot be reached.
        """
        check_names(remote.name, remote.user, remote.host)
        try:
            shown = await self._host_key(remote)
        except RemoteFault as fault:
            raise NotAdded(fault.remote, fault.state, fault.why) from fault
        if expected and shown.fingerprint != expected:
            other = because("not_that_key", host=remote.host, fingerprint=shown.fingerprint, expected=expected)
            raise InputFault(other, "host_key")
        if not expected and shown.known == "other":
            raise NotAdded(remote.name, "changed_key", because("other_known_key", host=remote.host))
        if not expected and shown.known == "no":
            raise UnknownHostKey(remote.host, shown.fingerprint)
        if (looking := self._looking.pop(remote.name, None)) is not None:
            looking.cancel()  # what it finds would be recorded for the new worker
        self.registry.put(msgspec.structs.replace(remote, host_key=shown.line))
        return await self.check(remote.name)

    async def _host_key(self, remote: Remote) -> protocol.HostKey:
        async with _tunnel(protocol.Order(do="key", remote=remote)) as tunnel:
            async for message in tunnel.messages():
                if isinstance(message, protocol.HostKey):
                    return message
        raise RemoteFault(remote.name, "unreachable", because("showed_no_key", host=remote.host))

    async def check(self, name: str) -> Seen:
        """Check a worker now and measure its connection. Problems are stored. Raises: InputFault."""
        remote = self.registry.get(name)
        try:
            async with _tunnel(protocol.Order(do="check", remote=remote, kernel=self.kernel)) as tunnel:
                async for message in tunnel.messages():
                    if isinstance(message, protocol.Checked):
                        seen = Seen(state="ok", at=time.time(), facts=message.facts, link=message.link)
                        self.registry.saw(name, seen)
        except RemoteFault as fault:
            self.saw(fault, look_again=False)
        return self.registry.seen(name)

    def saw(self, fault: RemoteFault, *, look_again: bool = True) -> None:
        """Record a problem of a worker: placement does not use it until it replies again."""
        detail = fault.why if isinstance(fault.why, Reason) else None
        self.registry.saw(fault.remote, Seen(state=fault.state, reason=fault.reason, detail=detail, at=time.time()))
        log.warning("remote=%s %s: %s", fault.remote, fault.state, fault.reason)
        busy = self._looking.get(fault.remote)
        if look_again and fault.state in {"lost", "unreachable", "no_worker"} and (busy is None or busy.done()):
            self._looking[fault.remote] = asyncio.create_task(self._retry(fault.remote))

    async def _retry(self, name: str) -> None:
        waits = iter(LOOK_AGAIN_S)
        with contextlib.suppress(InputFault):  # it was removed in the meantime
            while True:
                await asyncio.sleep(next(waits, LOOK_AGAIN_S[-1]))
                self.registry.get(name)
                if self.registry.seen(name).state in {"ok", "slow"}:
                    return
                await self.check(name)

    async def open(self, names: Sequence[str]) -> list[Session]:
        """Open a session with each worker, concurrently. Raises: RemoteFault: one failed; then none is open."""
        starting = [asyncio.create_task(self._open(self.registry.get(name))) for name in names]
        done = await asyncio.gather(*starting, return_exceptions=True)
        sessions = [s for s in done if isinstance(s, Session)]
        fault = next((e for e in done if isinstance(e, BaseException)), None)
        if fault is None:
            return sessions
        await asyncio.gather(*(s.close() for s in sessions))
        raise fault

    async def _open(self, remote: Remote) -> Session:
        link = self.registry.seen(remote.name).link
        tunnel = await Tunnel.start(protocol.Order(do="open", remote=remote, kernel=self.kernel))
        session = Session(tunnel, link.rtt_s if link is not None else 0.0, self.saw)
        try:
            facts = await session.opened()
        except RemoteFault as fault:
            await session.close()
            self.saw(fault)
            raise
        except BaseException:
            await session.close()
            raise
        self.registry.saw(remote.name, Seen(state="ok", at=time.time(), facts=facts))
        return session

    async def close(self) -> None:
        """Stop rechecking lost workers."""
        for task in self._looking.values():
            task.cancel()
        await asyncio.gather(*self._looking.values(), return_exceptions=True)


@contextlib.asynccontextmanager
async def _tunnel(order: protocol.Order) -> AsyncIterator[Tunnel]:
    tunnel = await Tunnel.start(order)
    try:
        yield tunnel
    finally:
        await tunnel.close()

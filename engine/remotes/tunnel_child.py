"""Child process: the SSH connection to one worker. It lives as long as its input stays open.

Usage: python -m engine.remotes.tunnel_child, with an `Order` as the first line of its input. Writes `Message`s.
"""

import asyncio
import contextlib
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import asyncssh
import msgspec

from devices.msgspec_lock import learned
from engine.message_catalog.reasons import Reason, because
from engine.remotes import protocol
from engine.remotes.types import Link, Remote, RemoteFacts, State

CONNECT_S: Final = 10.0
LOGIN_S: Final = 20.0
# A worker starts a session's process and its kernels.
OPEN_S: Final = 40.0
PINGS: Final = 9
FIRST_BYTES: Final = 1 << 18
# Measuring a link takes about this long in each direction.
MEASURE_S: Final = 0.4
# Hardware accelerates these, so they cost a third of the others. Source: log-archive.md, links.
_CIPHERS: Final = (
    "aes128-gcm@openssh.com",
    "aes256-gcm@openssh.com",
    "chacha20-poly1305@openssh.com",
    "aes256-ctr",
)


class _Fault(Exception):
    def __init__(self, state: State, why: str | Reason) -> None:
        super().__init__(why)
        self.state: State = state
        self.why = why


def _send(message: protocol.Message) -> None:
    sys.stdout.buffer.write(protocol.line(message))
    sys.stdout.buffer.flush()


async def _run(order: protocol.Order) -> None:
    if order.do == "key":
        await _show_key(order.remote)
        return
    async with _connected(order.remote) as connection:
        worker = await _Worker.reach(connection, order.remote)
        facts = await worker.facts()
        if facts.kernel != order.kernel:
            reason = because("other_kernel", theirs=facts.kernel or "unknown", ours=order.kernel or "unknown")
            raise _Fault("other_kernel", reason)
        if order.do == "check":
            _send(protocol.Checked(facts=facts, link=await worker.measure()))
            return
        _send(protocol.Checked(facts=facts))
        port = await worker.open()
        listener = await connection.forward_local_port("127.0.0.1", 0, "127.0.0.1", port)
        _send(protocol.Opened(port=listener.get_port()))
        while True:
            await asyncio.sleep(protocol.BEAT_S)
            rtt_s, held_bytes = await worker.beat()
            _send(protocol.Beat(rtt_s=rtt_s, held_bytes=held_bytes))


async def _show_key(remote: Remote) -> None:
    with _as_faults(remote):
        key = await asyncio.wait_for(asyncssh.get_server_host_key(remote.host, remote.port), CONNECT_S + LOGIN_S)
    if key is None:
        raise _Fault("unreachable", because("shows_no_key", host=remote.host))
    line = key.export_public_key("openssh").decode().strip()
    _send(protocol.HostKey(line=line, fingerprint=key.get_fingerprint("sha256"), known=_is_known_host(remote, key)))


def _is_known_host(remote: Remote, key: Any) -> Any:
    """Whether the user's known_hosts has this key for this host."""
    path = Path("~/.ssh/known_hosts").expanduser()
    try:
        hosts = asyncssh.read_known_hosts(str(path))
        trusted = asyncssh.match_known_hosts(hosts, remote.host, remote.host, remote.port)[0]
    except (OSError, ValueError):
        return "no"
    if key in trusted:
        return "yes"
    return "other" if any(k.get_algorithm() == key.get_algorithm() for k in trusted) else "no"


@contextlib.contextmanager
def _as_faults(remote: Remote) -> Any:
    """Map SSH's many errors to the few that a user can act on."""
    where: dict[str, Any] = {"host": remote.host, "port": remote.port}
    try:
        yield
    except asyncssh.HostKeyNotVerifiable:
        raise _Fault("changed_key", because("changed_key", **where)) from None
    except asyncssh.PermissionDenied:
        raise _Fault("refused", because("key_refused", **where, user=remote.user)) from None
    except TimeoutError:
        raise _Fault("unreachable", because("ssh_silent", **where)) from None
    except (OSError, asyncssh.Error) as error:
        why = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
        raise _Fault("unreachable", because("ssh_unreachable", **where, why=str(why))) from None


def _own_key(remote: Remote) -> Any:
    try:
        return asyncssh.read_private_key(str(Path(remote.identity).expanduser()))
    except (OSError, asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _Fault("refused", because("key_file_unusable", path=remote.identity, why=str(why))) from None


@contextlib.asynccontextmanager
async def _connected(remote: Remote) -> AsyncIterator[Any]:
    keys = {"client_keys": [_own_key(remote)], "agent_path": None} if remote.identity else {}
    with _as_faults(remote):
        trusted = asyncssh.import_public_key(remote.host_key)
        connection = await asyncssh.connect(
            remote.host,
            remote.port,
            username=remote.user,
            known_hosts=([trusted], [], []),
            compression_algs=None,
            encryption_algs=_CIPHERS,
            preferred_auth="publickey",
            connect_timeout=CONNECT_S,
            login_timeout=LOGIN_S,
            **keys,
        )
    try:
        yield connection
    finally:
        connection.abort()


class _Worker:
    """The dialogue with `tessera worker`, over one channel."""

    def __init__(self, reader: Any, writer: Any, where: dict[str, Any]) -> None:
        self._reader, self._writer, self._where = reader, writer, where

    @classmethod
    async def reach(cls, connection: Any, remote: Remote) -> "_Worker":
        where: dict[str, Any] = {"host": remote.host, "port": remote.worker_port}
        try:
            opening = connection.open_connection("127.0.0.1", remote.worker_port, encoding=None)
            reader, writer = await asyncio.wait_for(opening, LOGIN_S)
        except asyncssh.ChannelOpenError as error:
            raise _Fault("no_worker", because("no_worker_listens", **where, why=str(error.reason))) from None
        return cls(reader, writer, where)

    async def ask(
        self, question: protocol.Ask, within_s: float = protocol.SILENT_S, payload: bytes = b""
    ) -> protocol.WorkerReply:
        try:
            async with asyncio.timeout(within_s):
                self._writer.write(protocol.line(question) + payload)
                await self._writer.drain()
                answer = await protocol.read_answer(self._reader.readline)
        except TimeoutError:
            raise _Fault("lost", because("worker_silent", seconds=within_s)) from None
        except (protocol.MalformedMessage, asyncssh.Error, OSError, EOFError, ValueError) as error:
            if isinstance(error, protocol.MalformedMessage):
                raise _Fault("no_worker", because("not_our_worker", **self._where)) from None
            raise _Fault("lost", because("connection_ended")) from None
        if answer.error:
            raise _Fault("lost", answer.error)
        return answer

    async def facts(self) -> RemoteFacts:
        """Facts of the worker. Raises: _Fault: the program that listens there is not a Tessera worker."""
        try:
            answer = await self.ask(protocol.Ask(do="facts"), LOGIN_S)
        except _Fault as fault:
            raise _Fault("no_worker", because("no_worker_answers", **self._where, why=fault.why)) from None
        if answer.facts is None:
            raise _Fault("no_worker", because("not_our_worker", **self._where))
        return answer.facts

    async def open(self) -> int:
        answer = await self.ask(protocol.Ask(do="open"), OPEN_S)
        if not answer.port:
            raise _Fault("no_worker", because("no_session"))
        return answer.port

    async def beat(self) -> tuple[float, int]:
        began = time.perf_counter()
        answer = await self.ask(protocol.Ask(do="ping"))
        return time.perf_counter() - began, answer.held_bytes

    async def measure(self) -> Link:
        """Round-trip time in seconds and bytes per second, as a session would have them."""
        rtt = statistics.median([(await self.beat())[0] for _ in range(PINGS)])
        return Link(
            rtt_s=rtt, up_bytes_s=await self._speed("sink", rtt), down_bytes_s=await self._speed("source", rtt)
        )

    async def _speed(self, do: Any, rtt_s: float) -> float:
        size, speed = FIRST_BYTES, 0.0
        while True:
            began = time.perf_counter()
            if do == "sink":
                await self.ask(protocol.Ask(do="sink", num_bytes=size), OPEN_S, bytes(size))
            else:
                await self.ask(protocol.Ask(do="source", num_bytes=size), OPEN_S)
                await self._reader.readexactly(size)
            spent = time.perf_counter() - began
            speed = size / max(1e-6, spent - rtt_s)
            if spent > MEASURE_S / 4 or size >= protocol.MOST_MEASURED_BYTES:
                return speed
            size = min(protocol.MOST_MEASURED_BYTES, size * 8)


async def _main() -> int:
    try:
        order = msgspec.json.decode(sys.stdin.buffer.readline(), type=learned(protocol.Order))
    except msgspec.MsgspecError as error:
        sys.stderr.write(f"tunnel: {error}\n")
        return 2
    task = asyncio.create_task(_run(order))
    loop = asyncio.get_running_loop()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        with contextlib.suppress(RuntimeError):  # the task has ended by itself
            loop.call_soon_threadsafe(task.cancel)

    threading.Thread(target=wait_for_end, daemon=True).start()
    try:
        await task
    except asyncio.CancelledError:
        return 0
    except _Fault as fault:
        _send(protocol.Failed(state=fault.state, reason=fault.why))
        return 1
    except (asyncssh.Error, OSError, asyncio.IncompleteReadError) as error:
        _send(protocol.Failed(state="lost", reason=because("connection_ended_by", why=str(error))))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))

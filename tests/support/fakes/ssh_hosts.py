"""Simulated remote hosts: a real SSH server, real workers on loopback, and a relay that limits the connection."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time

import psutil

from tests.support.late import asyncssh
from tests.support.servers import ROOT, free_port, wait_for


class Worker:
    """`tessera worker` in a separate process. `memory` limits what it offers."""

    def __init__(self, home, port=None, memory=None, threads=1, env=None):
        self.port = port or free_port()
        self.home = home
        command = [sys.executable, "-m", "app", "worker", "--port", str(self.port), "--threads", str(threads)]
        self.process = subprocess.Popen(
            [*command, *(["--memory", memory] if memory else [])],
            cwd=ROOT, env={**os.environ, "TESSERA_HOME": str(home), **(env or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        wait_for(lambda: self.process.poll() is not None or self.listens(), 90, "the worker's port")
        assert self.process.poll() is None, self.process.stdout.read()

    def listens(self):
        return any(c.status == "LISTEN" for c in psutil.Process(self.process.pid).net_connections("inet"))

    def sessions(self):
        """Its llama.cpp RPC server processes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children()
        return []

    def stop(self):
        for child in self.sessions():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class _Login:
    """The asyncssh server callbacks that differ from its defaults."""

    def __init__(self, host):
        self._host = host

    def connection_made(self, conn):
        self._host.connections.append(conn)

    def begin_auth(self, _username):
        return True

    def public_key_auth_supported(self):
        return True

    def validate_public_key(self, _username, key):
        return key == self._host.user_key.convert_to_public()

    def connection_requested(self, dest_host, _dest_port, _orig_host, _orig_port):
        return dest_host == "127.0.0.1"  # forward only to loopback


class SshHost:
    """An SSH server with keys and forwarding, in a separate thread; `identity` is the user's key."""

    def __init__(self, folder, address="127.0.0.1", port=0):
        self.connections = []
        self.user_key = asyncssh.generate_private_key("ssh-ed25519")
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.identity = folder / f"id_{id(self)}"
        self.user_key.write_private_key(str(self.identity))
        self.identity.chmod(0o600)
        self._loop = asyncio.new_event_loop()
        self._address, self.port = address, port
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._listen())

    @property
    def fingerprint(self):
        return self.host_key.get_fingerprint("sha256")

    async def _listen(self):
        login = type("Login", (_Login, asyncssh.SSHServer), {})
        self._server = await asyncssh.create_server(
            lambda: login(self), self._address, self.port, server_host_keys=[self.host_key]
        )
        self.port = self._server.get_port()

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def with_another_key(self):
        """Replace the host key, as after a reinstallation or with a man in the middle."""

        async def again():
            self._server.close()
            await self._server.wait_closed()
            self.host_key = asyncssh.generate_private_key("ssh-ed25519")
            await self._listen()

        self._run(again())

    def live(self):
        """The open connections."""
        return [c for c in self.connections if not c.is_closed()]

    def stop(self):
        async def end():
            self._server.close()
            for connection in self.connections:
                connection.abort()
            await asyncio.sleep(0.05)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class Relay:
    """A relay to `target` that passes `bytes_s` in each direction, delayed by `delay_s`; it can be cut or stalled.

    Bytes are counted in `up` and `down`.
    """

    def __init__(self, target, bytes_s=1e9, delay_s=0.0, listen=("127.0.0.1", 0)):
        self.target, self.bytes_s, self.delay_s = target, bytes_s, delay_s
        self.up = self.down = 0
        self.stalled = False
        self._writers = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._join, *listen), self._loop)
        self._server = starting.result(10)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _join(self, reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pass(reader, far_writer, "up"), self._pass(far_reader, writer, "down"))
        self._writers -= {writer, far_writer}

    async def _pass(self, reader, writer, way):
        queue = asyncio.Queue()
        sender = asyncio.create_task(self._send(queue, writer))
        free_at = 0.0
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                setattr(self, way, getattr(self, way) + len(data))
                now = self._loop.time()
                free_at = max(free_at, now) + len(data) / self.bytes_s
                queue.put_nowait((free_at + self.delay_s, data))
                if free_at - now > 0.02:
                    await asyncio.sleep(free_at - now - 0.02)
        queue.put_nowait((0.0, None))
        await sender

    async def _send(self, queue, writer):
        with contextlib.suppress(OSError):
            while (item := await queue.get())[1] is not None:
                wait_s = item[0] - self._loop.time()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                while self.stalled:  # noqa: ASYNC110 - set from another thread
                    await asyncio.sleep(0.02)
                writer.write(item[1])
                await writer.drain()
        writer.close()

    def cut(self):
        """End every connection and accept no new one."""

        def now():
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()

        self._loop.call_soon_threadsafe(now)
        time.sleep(0.05)

    def stop(self):
        self.stalled = False
        self.cut()
        time.sleep(0.1)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

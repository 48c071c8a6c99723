"""A table of the faults that a marathon injects, each with its class."""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.optin.fuzz_headers import mutate
from tests.optin.hostile_input import damaged
from tests.optin.marathon_liars import (
    Skipped,
    abusers,
    hub_does,
    hub_lies,
    mcp_lies,
    upstream_is_cut,
)
from tests.optin.marathon_world import free_port
from tests.support.servers import ROOT, RunningServer

STATES = ROOT / "tests" / "data" / "states"
SPARK = ROOT / "assets" / "models" / "spark-f16.gguf"


@dataclass(frozen=True)
class Fault:
    """`breaks`: clients may lose their connection. `mortal`: the server ends, so no trend is fitted across it.

    `fells`: a runner dies. After several of those in a short time the server, rightly, no longer starts that model.
    """

    kind: str
    name: str
    make: Any
    breaks: bool = False
    mortal: bool = False
    fells: bool = False


def spawned(command, **more):
    """A concurrent process, whose end the caller awaits in a thread."""
    return subprocess.Popen(command, **more)


def runner(world):
    found = world.server.runners()
    if not found:
        raise Skipped
    return world.rng.choice(found)


def to_runner(what):
    async def make(world, traffic):
        with contextlib.suppress(psutil.Error):
            runner(world).send_signal(what)

    return make


async def runner_pauses(world, traffic):
    process = runner(world)
    with contextlib.suppress(psutil.Error):
        process.suspend()
        await asyncio.sleep(world.rng.uniform(1, 15))
        process.resume()


async def helper_dies(world, traffic):
    """Any child of the server other than a runner: a renderer, a job's worker, a reader."""
    runners = {r.pid for r in world.server.runners()}
    others = [p for p in psutil.Process(world.server.process.pid).children(recursive=True) if p.pid not in runners]
    if not others:
        raise Skipped
    with contextlib.suppress(psutil.Error):
        world.rng.choice(others).kill()


async def server_pauses(world, traffic):
    process = psutil.Process(world.server.process.pid)
    process.suspend()
    await asyncio.sleep(world.rng.uniform(1, 10))
    process.resume()


def server_ends(how):
    async def make(world, traffic):
        await world.end_server(how)
        await world.start_server()

    return make


async def window_dies(world, traffic):
    if world.window is None:
        raise Skipped
    await asyncio.to_thread(world.end_window)
    world.start_window()


async def writer_dies(world, traffic):
    await asyncio.to_thread(world.end_writer)
    world.start_writer()


# ---------------------------------------------------------------------- disk


async def disk_full(world, traffic):
    if not world.own_disk:
        raise Skipped
    ballast = world.folder / "ballast"
    try:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * (1 << 20))
        await asyncio.sleep(world.rng.uniform(5, 20))
    finally:
        ballast.unlink(missing_ok=True)


async def disk_slow(world, traffic):
    if shutil.which("strace") is None:
        raise Skipped
    calls = "fsync,fdatasync,rename,unlink"
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}"]
    command += ["-e", f"inject={calls}:delay_enter=500000", "-p"]
    targets = [world.server.process.pid, world.writer.pid]
    slow = [spawned([*command, str(pid)], stderr=subprocess.DEVNULL) for pid in targets]
    try:
        await asyncio.sleep(world.rng.uniform(8, 20))
    finally:
        for tracer in slow:
            tracer.terminate()
            await asyncio.to_thread(tracer.wait)


# ---------------------------------------------------------------------- limits


@contextlib.contextmanager
def limited(pid, what, value):
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (value, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, what, before)


async def descriptors_run_out(world, traffic):
    pid = world.server.process.pid
    with limited(pid, resource.RLIMIT_NOFILE, psutil.Process(pid).num_fds() + 12):
        await idle_connections(world, traffic)


async def idle_connections(world, traffic):
    held, opened = [], time.monotonic()

    def hold(index):
        with contextlib.suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", world.port), 2))
            held[-1].sendall((b"", b"POST / HTTP/1.1\r\nX: ", b"GET /health HTTP/1.1\r\nHost: x\r\n")[index % 3])

    try:
        for index in range(300):
            await asyncio.to_thread(hold, index)
            if time.monotonic() - opened > 20:
                break
        await asyncio.sleep(10)
    finally:
        for connection in held:
            connection.close()


async def server_memory(world, traffic):
    pid = world.server.process.pid
    room = world.rng.choice((8, 64, 256)) << 20
    with limited(pid, resource.RLIMIT_AS, psutil.Process(pid).memory_info().vms + room):
        await asyncio.sleep(15)


async def runner_memory(world, traffic):
    process = runner(world)
    room = world.rng.choice((1, 16, 128)) << 20
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        limit = process.memory_info().vms + room
        with limited(process.pid, resource.RLIMIT_AS, limit):
            await asyncio.sleep(15)


# ---------------------------------------------------------------------- time


def clock_jumps(shift_s):
    async def make(world, traffic):
        if world.false_clock is None:
            raise Skipped
        world.set_clock(shift_s)
        await asyncio.sleep(12)
        if world.rng.random() < 0.7:
            world.set_clock(0)

    return make


async def suspended(world, traffic):
    """A suspended computer from a program's view: everything stops, then the clock is hours ahead."""
    server = psutil.Process(world.server.process.pid)
    everyone = [server, *server.children(recursive=True)]
    if world.window is not None:
        everyone.append(psutil.Process(world.window.pid))
    for process in everyone:
        with contextlib.suppress(psutil.Error):
            process.suspend()
    await asyncio.sleep(world.rng.uniform(5, 40))
    world.set_clock(8 * 3600)
    for process in everyone:
        with contextlib.suppress(psutil.Error):
            process.resume()
    await asyncio.sleep(5)
    world.set_clock(0)


# ---------------------------------------------------------------------- files


def state_files(world):
    dropped = ("server.json", ".lock", ".log", "-shm")
    found = [p for name in ("state", "config", "cache") for p in (world.home / name).rglob("*") if p.is_file()]
    found = [p for p in found if not p.name.endswith(dropped) and p.stat().st_size < 20 << 20]
    if not found:
        raise Skipped
    return sorted(found)


def damage(world, path):
    world.damaging = True
    with contextlib.suppress(FileNotFoundError):
        raw, rng = path.read_bytes(), world.rng
        kind = rng.choice(("mutated", "cut", "empty", "noise", "zeros"))
        if kind == "mutated":
            raw = mutate(raw[: 1 << 20], rng) + raw[1 << 20 :]
        raw = {"cut": raw[: len(raw) // 2], "empty": b"", "noise": rng.randbytes(min(len(raw), 4096)),
               "zeros": b"\0" * len(raw)}.get(kind, raw)  # fmt: skip
        path.write_bytes(raw)


async def files_damaged_at_rest(world, traffic):
    """The window is closed too, so that its chats may be among them."""
    await world.end_server(signal.SIGTERM)
    had_window = world.window is not None
    if had_window:
        await asyncio.to_thread(world.end_window)
    for path in world.rng.sample(files := state_files(world), min(3, len(files))):
        damage(world, path)
    await world.start_server()
    if had_window:
        world.start_window()


async def file_damaged_in_use(world, traffic):
    files = [p for p in state_files(world) if p.suffix == ".json"]
    if not files:
        raise Skipped
    damage(world, world.rng.choice(files))
    await asyncio.sleep(3)


async def hostile_models(world, traffic):
    data = SPARK.read_bytes()
    for _ in range(3):
        raw, _kind = damaged(data, world.rng)
        path = world.home / "models" / f"hostile{world.rng.getrandbits(30)}.gguf"
        with contextlib.suppress(OSError):
            path.write_bytes(raw)
        await traffic.manage("GET", "/models", params={"refresh": "true"})
        body = {"model": path.name, "prompt": "Hi", "max_tokens": 2}
        answer = await traffic.client.post(f"{traffic.url}/v1/completions", json=body, timeout=180)
        path.unlink(missing_ok=True)
        if answer.status_code == 500 and "internal error" in answer.text:
            raise AssertionError(f"hostile model: {answer.text[:300]}")


async def newer_and_older_files(world, traffic):
    """Another server answers with the state of an earlier version."""
    home = Path(tempfile.mkdtemp(dir=world.folder, prefix="older-"))
    kept = world.rng.choice(sorted(STATES.iterdir()))
    await asyncio.to_thread(shutil.copytree, kept, home, dirs_exist_ok=True)
    server = await asyncio.to_thread(lambda: RunningServer(home, env=world.env))
    try:
        headers = {"authorization": f"Bearer {(kept / 'key.txt').read_text()}"}
        body = {"model": "before", "prompt": "Hi", "max_tokens": 1}
        answer = await traffic.client.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=300)
        assert answer.status_code == 200, f"state {kept.name}: {answer.text[:300]}"
        assert "Traceback" not in server.log, server.log[-800:]
    finally:
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(shutil.rmtree, home)


async def second_server(world, traffic):
    """A second server with the same home: clients keep finding the first one."""
    before = (world.home / "state" / "server.json").read_bytes()
    command = [sys.executable, "-m", "app", "serve", "--port", str(free_port())]
    env = {**os.environ, **world.env, "TESSERA_HOME": str(world.home)}
    second = spawned(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(second.wait, 8)
    finally:
        if second.poll() is None:
            second.terminate()
        said = (await asyncio.to_thread(second.communicate))[1].decode(errors="replace")
    assert "Traceback" not in said, said[-800:]
    now = (world.home / "state" / "server.json").read_bytes()
    assert now == before, "the second server changed where the first is found"


TABLE = (
    Fault("process", "runner killed", to_runner(signal.SIGKILL), fells=True),
    Fault("process", "runner crashes", to_runner(signal.SIGSEGV), fells=True),
    Fault("process", "runner stopped for good", to_runner(signal.SIGSTOP), fells=True),
    Fault("process", "runner stopped and thawed", runner_pauses),
    Fault("process", "helper process killed", helper_dies),
    Fault("process", "server stopped and thawed", server_pauses, breaks=True),
    Fault("process", "server killed", server_ends(signal.SIGKILL), breaks=True, mortal=True),
    Fault("process", "server stopped", server_ends(signal.SIGTERM), breaks=True, mortal=True),
    Fault("process", "window killed", window_dies),
    Fault("process", "writer of chats killed", writer_dies),
    Fault("disk", "full", disk_full),
    Fault("disk", "slow", disk_slow, breaks=True),
    Fault("limits", "descriptors run out", descriptors_run_out, breaks=True),
    Fault("limits", "300 idle connections", idle_connections, breaks=True),
    Fault("limits", "memory of the server", server_memory, breaks=True),
    Fault("limits", "memory of a runner", runner_memory, fells=True),
    Fault("clock", "an hour ahead", clock_jumps(3600)),
    Fault("clock", "a day back", clock_jumps(-86_400)),
    Fault("clock", "twenty years back", clock_jumps(-20 * 31_557_600)),
    Fault("clock", "ten years ahead", clock_jumps(10 * 31_557_600)),
    Fault("clock", "suspended and resumed", suspended, breaks=True),
    Fault("files", "damaged at rest", files_damaged_at_rest, breaks=True, mortal=True),
    Fault("files", "damaged in use", file_damaged_in_use),
    Fault("files", "hostile models", hostile_models),
    Fault("files", "of an earlier version", newer_and_older_files),
    Fault("files", "two servers on one home", second_server),
    Fault("hub", "other bytes", hub_lies),
    Fault("hub", "cut", hub_does(cut_after=(1000, 300_000, 2_000_000), bytes_per_s=2e6)),
    Fault("hub", "stalls", hub_does(stall_after=(100_000,), stall_s=8.0)),
    Fault("hub", "too many requests", hub_does(too_many=6, retry_after="1")),
    Fault("hub", "errors", hub_does(server_error=6)),
    Fault("hub", "storage down", hub_does(storage_down=True)),
    Fault("network", "upstream cut", upstream_is_cut),
    Fault("others", "MCP server lies", mcp_lies),
    Fault("others", "clients that misuse", abusers),
)

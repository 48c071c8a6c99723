"""Runs a cluster of three nodes on this machine (Ray's test cluster) behind a Tessera server.

    python tests/optin/cluster.py [--requests 200] [--talks 30] [--only affinity kill scale quantize]

Needs `tessera[cluster]`. Reports how many second turns find their cache with and without prefix affinity, what
happens to requests while a node is killed, whether one replica becomes three and one again, and whether tensors
rounded by tasks on the nodes equal those rounded on one machine. Exits with 1 if a result is wrong.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx2
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from app.cluster.types import ClusterFile, Deployed
from tests.support.models.measured_model import HELD_OUT
from tests.support.models.small_folder import first_layers, short_text
from tests.support.servers import RunningServer, wait_for

MODEL = ROOT / "assets" / "models" / "spark-f16.gguf"
NODE_BYTES = 2 << 30
REPLICA_BYTES = 1 << 30
PATIENCE_S = 240
WORDS = ("river", "stone", "lamp", "winter", "bread", "window", "copper", "field", "thread", "music", "harbour")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def agent_ports():
    """Set in advance: a node waits 15 s for its agents to choose ports, which is too short on a busy machine."""
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    return {name: free_port() for name in names}


class World:
    """Three nodes with separate homes, the gateway in this process, and a Tessera server in front of it."""

    def __init__(self, folder):
        self.folder = folder
        gateway = folder / "gateway"
        gateway.mkdir()
        self.server = RunningServer(gateway)
        known = ClusterFile(token=secrets.token_hex(32))
        os.environ.update(known.environment())
        os.environ["PYTHONPATH"] = str(ROOT)
        from ray.cluster_utils import Cluster

        homes = [folder / name for name in ("head", "second", "third")]
        for home in homes:
            home.mkdir()
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={**agent_ports(),
                "num_cpus": 2, "memory": NODE_BYTES, "env_vars": {"TESSERA_HOME": str(homes[0])},
                            "include_dashboard": False},
        )  # fmt: skip
        self.homes, self.nodes = homes[1:], []
        self.complete()
        import uvicorn

        from app.cluster import deploying
        from app.cluster.gateway import Door

        self.deploying = deploying
        deploying.connect(ClusterFile(address=self.cluster.address, token=known.token))
        port = free_port()
        self._door = uvicorn.Server(
            uvicorn.Config(Door(known.token).app, host="127.0.0.1", port=port, log_level="warning")
        )
        self._doorman = threading.Thread(target=self._door.run, daemon=True)
        self._doorman.start()
        self.url, self.headers = self.server.url, {"authorization": f"Bearer {self.server.token}"}
        with httpx2.Client(base_url=self.url, headers=self.headers, timeout=PATIENCE_S) as http:
            body = {"url": f"http://127.0.0.1:{port}", "key": known.token}
            http.put("/tessera/v1/upstreams/cluster", json=body).raise_for_status()
            http.put(
                "/tessera/v1/upstream-rules", json={"model": "cluster/*", "upstream": "cluster"}
            ).raise_for_status()

    def complete(self):
        """A node next to the head for each home, if one was killed."""
        while len(self.nodes) < len(self.homes):
            taken = {home for _, home in self.nodes}
            home = next(h for h in self.homes if h not in taken)
            node = self.cluster.add_node(
                num_cpus=2, memory=NODE_BYTES, env_vars={"TESSERA_HOME": str(home)}, **agent_ports()
            )
            self.nodes.append((node, home))

    def deploy(self, **changes):
        self.complete()
        told = {"model": "spark", "num_bytes": MODEL.stat().st_size, "memory_bytes": REPLICA_BYTES, **changes}
        down_s = told.pop("down_s", 600.0)
        began = time.monotonic()
        self.deploying.deploy(Deployed(**told), down_s=down_s)
        return time.monotonic() - began

    def replicas(self):
        return self.deploying.deployed().get("spark", {}).get("replicas", {}).get("RUNNING", 0)

    def stop(self):
        import ray

        self.server.stop()
        self._door.should_exit = True
        self._doorman.join(30)  # it would connect again
        with contextlib.suppress(Exception):
            self.deploying.shut_down()
        ray.shutdown()
        self.cluster.shutdown()


async def say(http, messages, tokens):
    """One streamed answer: its text, its final error, and the token counts."""
    body = {"model": "cluster/spark", "messages": messages, "max_tokens": tokens, "stream": True, "temperature": 0,
            "ignore_eos": True, "stream_options": {"include_usage": True}}  # fmt: skip
    text, error, usage = "", None, {}
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != httpx2.codes.OK:
                return "", (await answer.aread()).decode()[:300], {}
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("error"):
                    error = event["error"]["message"]
                usage = event.get("usage") or usage
                for choice in event.get("choices") or ():
                    text += choice["delta"].get("content") or ""
    except httpx2.HTTPError as fault:
        error = f"{type(fault).__name__}: {fault}"
    return text, error, usage


def clients(world):
    limits = httpx2.Limits(max_connections=None)
    return httpx2.AsyncClient(base_url=world.url, headers=world.headers, timeout=PATIENCE_S, limits=limits)


def opening(rng, words=60):
    return {"role": "user", "content": " ".join(rng.choices(WORDS, k=words)) + f" {rng.random():.9f}"}


async def talks(world, count):
    """The number of second turns that found their first turn's prefix, of `count` chats, six at a time."""
    rng, found, errors = random.Random(7), [], []
    gate = asyncio.Semaphore(6)
    async with clients(world) as http:

        async def talk():
            async with gate:
                messages = [opening(rng)]
                text, error, first = await say(http, messages, 8)
                errors.append(error)
                await asyncio.sleep(rng.random())
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]
                _, error, second = await say(http, messages, 8)
                errors.append(error)
                cached = (second.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                found.append(cached >= 0.9 * first.get("prompt_tokens", 1 << 30))

        await asyncio.gather(*(talk() for _ in range(count)))
    assert not any(errors), next(e for e in errors if e)
    return sum(found)


def runners(world):
    """CPU seconds of each replica's runner so far, by its process and its node's home."""
    homes = {str(home) for home in (world.folder / "head", *world.homes)}
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            home = (
                process.environ().get("TESSERA_HOME")
                if "engine.runner.main" in (process.info["cmdline"] or ())
                else None
            )
            if home in homes:
                found[process.pid, Path(home).name] = process.cpu_times().user
    return found


def affinity(world, options):
    """Second turns with and without affinity, and the distribution of the work."""
    shares = {}
    for wanted in (False, True):
        took = world.deploy(least=3, most=3, affinity=wanted)
        wait_for(lambda: world.replicas() == 3, PATIENCE_S, "three replicas")
        time.sleep(15)  # until the gateway has seen the new deployment, also on a busy machine
        before = runners(world)
        shares[wanted] = asyncio.run(talks(world, options.talks)) / options.talks
        spent = {
            f"{home} {pid}": round(s - before.get((pid, home), 0), 2) for (pid, home), s in runners(world).items()
        }
        print(f"     processor seconds of each replica's runner: {spent}", flush=True)
        words = "with" if wanted else "without"
        print(f"second turns that found their cache, {words} affinity: {shares[wanted]:.0%} of {options.talks} "
              f"(deployed in {took:.0f} s)", flush=True)  # fmt: skip
    return shares[True] >= 0.9 > shares[False]  # cached tokens that both have show nothing about affinity


async def through_a_kill(world, count, tokens):
    """The results of `count` requests, twelve at a time; a node is killed after a fifth of them."""
    rng, gate, results = random.Random(3), asyncio.Semaphore(12), []
    doomed, _ = world.nodes.pop()
    async with clients(world) as http:

        async def one():
            async with gate:
                results.append(await say(http, [opening(rng, 20)], tokens))

        asking = asyncio.gather(*(one() for _ in range(count)))
        while len(results) < count // 5:  # noqa: ASYNC110 - a gate says nothing of how many passed
            await asyncio.sleep(0.05)
        await asyncio.to_thread(world.cluster.remove_node, doomed, allow_graceful=False)
        at = len(results)
        await asking
    return results, at


def kill(world, options):
    """200 requests while a node is killed."""
    world.deploy(least=3, most=3)
    wait_for(lambda: world.replicas() == 3, PATIENCE_S, "three replicas")
    results, at = asyncio.run(through_a_kill(world, options.requests, 60))
    whole = sum(error is None and bool(text) for text, error, _ in results)
    told = [error for text, error, _ in results if text and error is not None]
    lost = [error for text, error, _ in results if not text]
    print(f"a node was killed after {at} of {options.requests} requests: {whole} whole, {len(told)} told, "
          f"{len(lost)} lost before their first token", flush=True)  # fmt: skip
    for error in sorted({*told, *map(str, lost)}):
        print("    ", error)
    return not lost and whole + len(told) == options.requests


async def busy(world, until_three):
    rng = random.Random(5)
    async with clients(world) as http:

        async def one():
            while not until_three.is_set():
                _, error, _ = await say(http, [opening(rng, 20)], 200)
                assert error is None, error

        await asyncio.gather(*(one() for _ in range(16)))


def scale(world, _options):
    """From one replica to three and back, by queue length."""
    world.deploying.remove("spark")
    world.deploy(least=1, most=3, down_s=8.0)
    assert world.replicas() == 1
    enough = threading.Event()
    failed = []

    def ask():
        try:
            asyncio.run(busy(world, enough))
        except AssertionError as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        up_s = wait_for(lambda: world.replicas() == 3, PATIENCE_S, "three replicas")
    finally:
        enough.set()
        asking.join()
    down_s = wait_for(lambda: world.replicas() == 1, PATIENCE_S, "one replica again")
    print(f"one replica became three after {up_s:.0f} s of 16 at once, and one again {down_s:.0f} s after the last "
          f"answer; {len(failed)} errors", flush=True)  # fmt: skip
    return not failed


def quantize(world, _options):
    """A file created by tasks on the nodes, and the same one created by children of this process."""
    from app.cluster.quantizing import RayTasks
    from quantize.child import HERE, Executor
    from quantize.job.execute import quantize as make
    from quantize.job.request import QuantizeRequest
    from quantize.types import SizeTarget

    tasks, took = RayTasks(), {}
    for name, executor in (("nodes", Executor(tasks.run, 1 << 30)), ("here", HERE)):
        home = world.folder / f"quantized-{name}"
        home.mkdir()
        request = QuantizeRequest(
            source=first_layers(home / "source", 1), out=home / "made.gguf", goal=SizeTarget(kind="bpw", bpw=5.0),
            calibration=short_text(home / "text.txt", 8_000), held_out=HELD_OUT, cache_dir=home / "cache",
            threads=2, probe_tokens=512, verify_tokens=2048,
        )  # fmt: skip
        began = time.monotonic()
        make(request, lambda _progress: None, lambda: False, executor)
        took[name] = time.monotonic() - began
    made = [(world.folder / f"quantized-{name}" / "made.gguf").read_bytes() for name in took]
    same = made[0] == made[1]
    words = "the same" if same else "OTHER"
    print(f"{words} {len(made[0])} bytes by {sum(tasks.nodes.values())} tasks on {len(tasks.nodes)} nodes "
          f"({took['nodes']:.0f} s) and here ({took['here']:.0f} s)", flush=True)  # fmt: skip
    return same and len(tasks.nodes) > 1


STEPS = {"affinity": affinity, "kill": kill, "scale": scale, "quantize": quantize}


def main():
    read = argparse.ArgumentParser(description=__doc__)
    read.add_argument("--requests", type=int, default=200)
    read.add_argument("--talks", type=int, default=30)
    read.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    options = read.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world = None
        try:
            world = World(Path(folder))
            print("three nodes, the door and a server are up", flush=True)
            good = [STEPS[name](world, options) for name in options.only]
        finally:
            if world is not None:
                world.stop()
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

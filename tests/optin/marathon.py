"""Everything at once for hours: a real server, the window, clients of all protocols, jobs, and faults on the way.

    python tests/optin/marathon.py [--hours 1] [--seed 1] [--clients 4] [--only NAME,NAME]

Faults are drawn from the table of marathon_faults.py. All the time: no request without an end, no acknowledged
message lost, no answer with `deterministic` changed, no process left behind, and memory, descriptors, threads,
processes and files on no rising line over the last half. In that half no fault ends the server, so that there
is a line. Prints what was tried, by class, and what was found; ends with 1 when anything was. On Linux all of
its files lie on a small disk of their own in memory, which can be filled; a C compiler (for the clock), strace
and Xvfb are used where they are installed, and what could not be tried is said.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import httpx2
import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.pool.loaded_model import CRASH_WINDOW_S, MAX_CRASHES
from tests.optin.marathon_faults import TABLE, Skipped
from tests.optin.marathon_traffic import STUCK_TICKS, Traffic
from tests.optin.marathon_world import World, alive
from tests.optin.random_requests import POISON
from tests.support.fakes.fake_hub import FakeFile, FakeHub
from tests.support.models.variants import write_poisoned

BUNDLED = ROOT / "assets" / "models" / "spark-f16.gguf"
POISONED = "poisoned-spark.gguf"
DISK_BYTES = 1200 << 20
# What may be added over the last half beyond three times the scatter: caches fill up to their bounds.
SLACK = {"MB": 24.0, "descriptors": 12, "threads": 8, "processes": 3, "files": 60}
LOG_BYTES_PER_S = 4000
# A runner that is stopped for good is found dead so much later at most.
FOUND_DEAD_S = 60
MEASURED_EVERY_S = 5


class Marathon:
    """One run."""

    def __init__(self, options, folder, hub):
        self.options, self.rng = options, random.Random(options.seed)
        self.world = World(folder, random.Random(options.seed + 1), hub.endpoint)
        self.world.hub = hub
        models = ["spark"]
        write_poisoned(BUNDLED, self.world.home / "models" / POISONED, POISON)
        if options.model is not None and options.model.exists():
            shutil.copy(options.model, self.world.home / "models" / "real.gguf")
            models.append("real.gguf")
        self.traffic = Traffic(self.world, models, POISONED)
        self.samples = defaultdict(list)  # (who, process, what) -> [(seconds, value)]
        self.tried, self.skipped = Counter(), Counter()
        self.slowest_to_be_well = Counter()
        self.begun, self.seconds = time.monotonic(), options.hours * 3600

    async def run(self):
        world, traffic = self.world, self.traffic
        await world.start_server()
        await traffic.learn()
        print(f"the known answers are learnt: {len(traffic.known)}", flush=True)
        world.start_writer()
        world.start_window()
        self.begun = time.monotonic()
        tasks = [self._watch(), traffic.users(self.options.clients, 1.5), traffic.jobs()]
        running = [asyncio.create_task(task) for task in tasks]
        try:
            await self._faults(running)
        finally:
            traffic.running = False
            for _ in range(STUCK_TICKS):
                if not traffic.open:
                    break
                await asyncio.sleep(1)
            for task in running:
                task.cancel()
            for result in await asyncio.gather(*running, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, asyncio.CancelledError):
                    world.blame(f"a part of the marathon itself broke: {result!r}")
        await self._end()
        self._lines()

    async def _faults(self, running):
        """One after another until the time is over; after each the server must answer again."""
        traffic, world = self.traffic, self.world
        only = set(filter(None, self.options.only.split(",")))
        bag, felled = [], []
        while time.monotonic() - self.begun < self.seconds:
            if any(task.done() for task in running):
                return
            await asyncio.sleep(self.rng.uniform(1, 6))
            last_half = time.monotonic() - self.begun > self.seconds / 2
            if not bag:
                bag = self.rng.sample(TABLE, len(TABLE))
            fault = bag.pop()
            if (only and fault.name not in only) or (last_half and fault.mortal):
                continue
            now = time.monotonic()
            felled = [at for at in felled if now - at < CRASH_WINDOW_S]
            if fault.fells and len(felled) >= MAX_CRASHES - 1:
                bag.insert(0, fault)
                if all(left.fells for left in bag):
                    bag += self.rng.sample(TABLE, len(TABLE))
                continue
            if fault.fells:
                felled.append(now + FOUND_DEAD_S)
            print(f"{time.monotonic() - self.begun:6.0f} s  {fault.kind}: {fault.name}", flush=True)
            record = [fault.name, time.monotonic(), None, fault.breaks]
            traffic.faults.append(record)
            try:
                await asyncio.wait_for(fault.make(world, traffic), 600)
                self.tried[fault.kind, fault.name] += 1
            except Skipped:
                self.skipped[fault.kind, fault.name] += 1
            except Exception as error:
                self.tried[fault.kind, fault.name] += 1
                world.blame(f"{fault.kind}: {fault.name}: {type(error).__name__}: {error}")
            finally:
                record[2] = time.monotonic()
            await self._recovered(fault, record)

    async def _recovered(self, fault, record):
        world, traffic = self.world, self.traffic
        if world.server.process.poll() is not None:
            world.blame(f"the server ended by itself ({world.server.process.returncode}) after {fault.name}")
            world.read_log()
            world.up.clear()
            await world.start_server()
        for what, process, start in (
            ("window", world.window, world.start_window),
            ("writer of chats", world.writer, world.start_writer),
        ):
            if process is not None and process.poll() is not None:
                world.blame(f"the {what} ended by itself ({process.returncode}) after {fault.name}")
                start()
        took, why = await traffic.well()
        record[2] = time.monotonic()
        if took is None:
            world.blame(f"not well again within 180 s of {fault.name}: {why}")
            await world.end_server(signal.SIGKILL)
            await world.start_server()
        else:
            self.slowest_to_be_well[fault.kind] = max(self.slowest_to_be_well[fault.kind], took)

    # ------------------------------------------------------------------ watching

    async def _watch(self):
        traffic, world = self.traffic, self.world
        while True:
            await asyncio.sleep(1)
            traffic.tick += 1
            for number, (shot, at) in list(traffic.open.items()):
                if traffic.tick - at == STUCK_TICKS:
                    world.blame(f"request {number} has no end: {str(shot)[:500]}")
            if world.window is not None and time.monotonic() - world.beats[-1] > 90 and not traffic.disturbed(0):
                world.blame("the window has not moved for 90 s")
                world.beats.append(time.monotonic())
            if traffic.tick % MEASURED_EVERY_S == 0:
                with contextlib.suppress(psutil.Error, OSError, httpx2.HTTPError, ValueError, IndexError):
                    told = await asyncio.wait_for(traffic.manage("GET", "/stats", params={"once": "true"}), 5)
                    models = json.loads(told.text.split("data: ", 1)[1])["models"]
                    kept = {m.get("pid"): m.get("cache_ram_bytes", 0) for m in models}
                    await asyncio.to_thread(self._measure, kept)
            if traffic.tick % 60 == 0:
                print(
                    f"{time.monotonic() - self.begun:6.0f} s  {traffic.sent} sent, {len(traffic.open)} open, "
                    f"{world.acknowledged} messages, {len(world.found)} found",
                    flush=True,
                )

    def _measure(self, kept_in_caches):
        world, now = self.world, time.monotonic() - self.begun
        watched = [("server", world.server.process.pid), ("window", world.window.pid if world.window else None)]
        watched += [("writer", world.writer.pid), *(("runner", r.pid) for r in world.server.runners())]
        for who, pid in watched:
            if pid is None:
                continue
            process = psutil.Process(pid)
            with process.oneshot():
                own = process.memory_info().rss - kept_in_caches.get(pid, 0)
                facts = {"MB": own / 1e6, "descriptors": process.num_fds()}
                facts |= {"threads": process.num_threads()}
            for what, value in facts.items():
                self.samples[who, pid, what].append((now, value))
        server = psutil.Process(world.server.process.pid)
        count = sum(1 for child in server.children(recursive=True) if alive(child))
        self.samples["server", server.pid, "processes"].append((now, count))
        # Kept prefixes are bounded by their bytes.
        kept = sum(len(files) for where, _, files in os.walk(world.home) if "prefixes" not in where)
        kept += sum(len(files) for _, _, files in os.walk(world.scratch))
        self.samples["all", 0, "files"].append((now, kept))

    def _lines(self):
        """What grew over the last half, by a line through it."""
        for (who, pid, what), points in self.samples.items():
            late = [(t, v) for t, v in points if t > self.seconds / 2]
            if len(late) < 20 or late[-1][0] - late[0][0] < 0.35 * self.seconds:
                continue
            x, y = np.array(late).T
            slope, height = np.polyfit(x, y, 1)
            scatter = float(np.std(y - slope * x - height))
            grown = slope * (x[-1] - x[0])
            print(
                f"line: {who} {pid or ''} {what}: {y[0]:.1f} to {y[-1]:.1f}, {60 * slope:+.3f} a minute, "
                f"scatter {scatter:.2f}"
            )
            if grown > max(3 * scatter, SLACK[what]):
                course = [f"{(t - points[0][0]) / 60:.0f}: {v:.0f}" for t, v in late[:: -(-len(late) // 12)]]
                self.world.blame(
                    f"{what} of {who} grow: {60 * slope:+.3f} a minute over the last half "
                    f"(by minutes of its life {', '.join(course)})"
                )

    # ------------------------------------------------------------------ the end

    async def _end(self):
        world = self.world
        server = psutil.Process(world.server.process.pid)
        everyone = [server, *server.children(recursive=True)]
        await asyncio.to_thread(world.end_writer)
        await world.end_server(signal.SIGTERM)
        if world.window is not None:
            await asyncio.to_thread(world.end_window, signal.SIGTERM)
        left = [(p.pid, p.cmdline()[1:5]) for p in everyone if alive(p)]
        left += [(p.pid, p.cmdline()[1:5]) for p in psutil.process_iter() if self._ours(p)]
        if left:
            world.blame(f"processes are left at the end: {left}")
        scraps = [p.name for p in world.scratch.rglob("*") if p.is_file()]
        if len(scraps) > 5:
            world.blame(f"{len(scraps)} scratch files are left: {scraps[:10]}")
        own = sum(p.stat().st_size for p in (world.home / "logs").rglob("*") if p.is_file())
        if world.log_bytes + own > LOG_BYTES_PER_S * self.seconds + 1_000_000:
            world.blame(f"the logs have {world.log_bytes + own} bytes")
        print(f"logs: {world.log_bytes + own} bytes in {self.seconds:.0f} s")
        places = Counter(str(p.parent.relative_to(world.folder)) for p in world.folder.rglob("*") if p.is_file())
        print("files: " + ", ".join(f"{place} {number}" for place, number in places.most_common(8)))

    def _ours(self, process):
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.name() == "Xvfb":
                return False
            return alive(process) and process.environ().get("TESSERA_HOME") == str(self.world.home)
        return False

    def report(self):
        world, traffic = self.world, self.traffic
        minutes = (time.monotonic() - self.begun) / 60
        print(f"\n{minutes:.1f} minutes, seed {self.options.seed}, {world.server_starts} starts of the server")
        print(f"{traffic.sent} requests: " + ", ".join(f"{k} {n}" for k, n in sorted(traffic.counts.items())))
        print(f"messages acknowledged {world.acknowledged}, refused {world.refused_writes}")
        print(f"latest beat of the window: {getattr(world, 'window_late', 0.0):.1f} s")
        by_kind = defaultdict(list)
        for (kind, name), number in sorted(self.tried.items()):
            by_kind[kind].append(f"{name} {number}")
        for kind, names in by_kind.items():
            print(f"  {kind} (well after at most {self.slowest_to_be_well[kind]} s): {', '.join(names)}")
        if self.skipped:
            print("  could not be tried: " + ", ".join(f"{k}: {n} {c}" for (k, n), c in self.skipped.items()))
        print("nothing found" if not world.found else f"{len(world.found)} found")
        for what in world.found:
            print("FOUND", what[:600].replace("\n", " | "))


def on_a_disk_of_its_own(folder, program=__file__):
    """Go on in a mount namespace where `folder` is a small disk in memory; returns where that is not possible."""
    probe = ["unshare", "-rm", "true"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        return
    script = f'mount -t tmpfs -o size={DISK_BYTES} none "{folder}" && exec "$0" "$@"'
    command = [sys.executable, program, *sys.argv[1:], "--folder", str(folder)]
    os.execvp("unshare", ["unshare", "-rm", "sh", "-c", script, *command])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--only", default="", help="names of faults")
    smollm = next((Path.home() / ".cache" / "tessera" / "models").glob("smollm2-*.gguf"), None)
    parser.add_argument("--model", type=Path, default=smollm, help="the real model beside the bundled one")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="marathon-"))
    if options.folder is None:
        on_a_disk_of_its_own(folder)
    with FakeHub() as hub:
        hub.add("org/Spark-GGUF", {"spark-F16.gguf": BUNDLED.read_bytes()})
        lie = FakeFile(BUNDLED.read_bytes()[:200_000] + b"1" * 3_000_000)
        hub.add("org/Lie-GGUF", {"lie-F16.gguf": lie})
        marathon = Marathon(options, folder, hub)
        try:
            asyncio.run(marathon.run())
        finally:
            marathon.report()
            marathon.world.close()
    print(json.dumps({"seed": options.seed, "found": len(marathon.world.found)}))
    return bool(marathon.world.found)


if __name__ == "__main__":
    raise SystemExit(main())

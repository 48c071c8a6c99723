"""Thousands of requests of random shape, length, cancellation and abuse against a real server; faults on the way.

    python tests/optin/soak.py [--requests 10000] [--minutes 30] [--clients 12] [--seed 1]

A runner is killed, another one stopped (a hang), and prompts whose logits are not numbers are sent throughout. At
the end: no request is stuck, no answer malformed, known prompts were answered as when they run alone, and the
memory of server and runner does not grow. Prints a report and exits with 1 when something is wrong.
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.optin.soak_traffic import POISON, Shot, complete, draw_shot, golden_prompts, refusal
from tests.support.models.variants import write_poisoned
from tests.support.servers import RunningServer

BUNDLED = ROOT / "assets" / "models" / "spark-f16.gguf"
POISONED = "poisoned-spark.gguf"
NUM_GOLDEN = 48
# Seconds without a byte after which a request counts as stuck. They are ticks of this process, so a computer that
# sleeps or pauses everything is not mistaken for a stuck server.
STUCK_TICKS = 180
# A second that took this long: the machine slept, or this process and its servers were paused together.
PAUSE_S = 30.0
# Error codes that a fault on the server's side may cause while one is injected.
FAULT_CODES = ("runner_died", "runner", "died", "stuck")
# Logits of one position differ by up to 0.03 between batches of different shapes (docs/dev/runner.md).
TIE = 0.1


class Soak:
    """One run: `found` collects all faults."""

    def __init__(self, server: RunningServer, options: argparse.Namespace) -> None:
        self.server = server
        self.options = options
        self.rng = random.Random(options.seed)
        self.client = httpx2.AsyncClient(
            base_url=server.url, timeout=None, limits=httpx2.Limits(max_connections=None)
        )
        self.found: list[str] = []
        self.counts: Counter[str] = Counter()
        self.golden = golden_prompts(NUM_GOLDEN)
        self.alone: list[dict[str, Any]] = []
        self.ties = 0
        self.sent = 0
        self.tick = 0
        self.paused = 0.0
        self.open: dict[int, tuple[Shot, int]] = {}
        self.faults: list[tuple[float, str]] = []
        self.memory: list[tuple[int, str, int, int]] = []  # requests sent, who, process id, bytes

    async def run(self) -> bool:
        """Run everything; True if nothing was found."""
        await self._answer_alone()
        started = time.monotonic()
        watch = asyncio.create_task(self._watch())
        pace = asyncio.create_task(self._pace(started))
        await asyncio.gather(*(self._user(started) for _ in range(self.options.clients)))
        for task in (watch, pace):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._at_rest()
        self._growth()
        self._report(time.monotonic() - started)
        await self.client.aclose()
        return not self.found

    # ------------------------------------------------------------------ traffic

    async def _answer_alone(self) -> None:
        """The answers to the known prompts when nothing else runs."""
        for prompt in self.golden:
            body = {"model": "spark", "prompt": prompt, "max_tokens": 60, "temperature": 0, "logprobs": 5}
            answer = await self.client.post("/v1/completions", json={**body, "speculate": False})
            self.alone.append(answer.json()["choices"][0])

    async def _pace(self, started: float) -> None:
        """Injects faults at regular intervals."""
        plan = [signal.SIGKILL, signal.SIGSTOP] * max(1, round(self.options.minutes / 15))
        for i, what in enumerate(plan):
            share = (i + 1) / (len(plan) + 1)
            while self._share(started) < share:  # noqa: ASYNC110 - two clocks are looked at, neither has an event
                await asyncio.sleep(0.2)
            runners = self.server.runners()
            if runners:
                victim = self.rng.choice(runners)
                self.faults.append((time.monotonic(), what.name))
                with contextlib.suppress(psutil.Error):
                    victim.send_signal(what)

    def _share(self, started: float) -> float:
        return max(self.sent / self.options.requests, (time.monotonic() - started) / (60 * self.options.minutes))

    async def _user(self, started: float) -> None:
        """One client after another request, in time with the whole."""
        while self.sent < self.options.requests:
            number = self.sent
            self.sent += 1
            due = started + 60 * self.options.minutes * number / self.options.requests
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            shot = draw_shot(self.rng, "spark", POISONED, self.golden)
            self.open[number] = (shot, self.tick)
            begun = time.monotonic()
            try:
                await self._send(number, shot, begun)
            except httpx2.TransportError as error:
                if self.paused > begun - 5:  # idle connections timed out while everything was paused
                    self.counts["lost in a pause of the machine"] += 1
                else:
                    self._blame(shot, f"{error!r}")
            except Exception as error:
                self._blame(shot, f"{error!r}")
            finally:
                del self.open[number]

    async def _send(self, number: int, shot: Shot, begun: float) -> None:
        self.counts[shot.kind] += 1
        content = shot.body if isinstance(shot.body, bytes) else json.dumps(shot.body).encode()
        request = self.client.build_request(
            "POST", shot.path, content=content, headers={"content-type": "application/json"}
        )
        if shot.leave_after == -1:
            with contextlib.suppress(TimeoutError, httpx2.HTTPError):
                async with asyncio.timeout(self.rng.uniform(0.0, 0.3)):
                    await self.client.send(request)
            self.counts["left before the answer"] += 1
            return
        response = await self.client.send(request, stream=True)
        got = bytearray()
        try:
            async for piece in response.aiter_raw():
                got += piece
                self.open[number] = (shot, self.tick)
                if shot.leave_after is not None and len(got) > shot.leave_after:
                    self.counts["left in the middle"] += 1
                    return
                if shot.slow:
                    await asyncio.sleep(0.05)
        finally:
            await response.aclose()
        self._judge(shot, response.status_code, bytes(got), begun)

    # ------------------------------------------------------------------ judging

    def _judge(self, shot: Shot, status: int, body: bytes, begun: float) -> None:
        message = _error_of(shot, status, body)
        if message is not None and any(word in message for word in FAULT_CODES) and self._faulty(begun):
            self.counts["ended by an injected fault"] += 1
        elif shot.expect == "refused":
            if not 400 <= status < 500 or message is None:
                self._blame(shot, f"status {status}: {body[:300]!r}")
        elif shot.expect == "poison":
            if message is None or "not a number" not in message:
                self._blame(shot, f"status {status}: {body[:300]!r}")
        elif message is not None or status != 200:
            if shot.expect == "ok" or status >= 500:
                self._blame(shot, f"status {status}: {message or body[:300]!r}")
        else:
            wrong = complete(shot, body) if shot.leave_after is None else None
            wrong = wrong or (self._compare(shot.golden, body) if shot.golden is not None else None)
            if wrong:
                self._blame(shot, wrong)

    def _faulty(self, begun: float) -> bool:
        """A fault was injected during this request, or shortly before, so that its runner was not replaced yet."""
        return any(at > begun - 90 for at, _ in self.faults)

    def _compare(self, index: int, body: bytes) -> str | None:
        """The text is that of the prompt alone, up to a position where two tokens were equally good."""
        text = ""
        for line in body.splitlines():
            if line.startswith(b"data: {"):
                text += "".join(c.get("text", "") for c in json.loads(line[6:])["choices"])
        known = self.alone[index]
        self.counts["spot checks"] += 1
        if text == known["text"]:
            return None
        at = next((i for i, (a, b) in enumerate(zip(text, known["text"], strict=False)) if a != b), None)
        at = min(len(text), len(known["text"])) if at is None else at
        offsets = known["logprobs"]["text_offset"]
        token = max(i for i, offset in enumerate(offsets) if offset - offsets[0] <= at)
        for i in (token, max(0, token - 1)):
            best = sorted(known["logprobs"]["top_logprobs"][i].values(), reverse=True)
            if len(best) > 1 and best[0] - best[1] < TIE:
                self.ties += 1
                return None
        return f"{text!r} instead of {known['text']!r}, gap {best[0] - best[1]:.3f}"

    def _blame(self, shot: Shot, what: str) -> None:
        self.found.append(f"{shot.kind} {shot.path} {str(shot.body)[:400]}: {what}")
        print("FOUND", self.found[-1][:1500], flush=True)

    # ------------------------------------------------------------------ watching

    async def _watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(1)
            self.tick += 1
            if time.monotonic() - before > PAUSE_S:
                self.paused = time.monotonic()
            for number, (shot, at) in list(self.open.items()):
                if self.tick - at == STUCK_TICKS:
                    self._blame(shot, f"request {number} is stuck")
            if self.tick % 5 == 0:
                await self._measure()
            if self.tick % 60 == 0:
                print(
                    f"{self.tick} s: {self.sent} sent, {len(self.found)} found, {len(self.open)} open", flush=True
                )

    async def _stats(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.server.token}"}
        answer = await self.client.get("/tessera/v1/stats", params={"once": "true"}, headers=headers)
        return json.loads(answer.text.split("data: ", 1)[1])

    async def _measure(self) -> None:
        told = await self._stats()
        kept = {m["id"]: m.get("cache_ram_bytes", 0) for m in told["models"]}
        rss = {p.pid: p.memory_info().rss for p in self.server.runners()}
        self.memory.append((self.sent, "server", 0, psutil.Process(self.server.process.pid).memory_info().rss))
        for model in told["models"]:
            if model.get("pid") in rss and "cache_ram_bytes" in model:
                size = rss[model["pid"]] - kept[model["id"]]
                self.memory.append((self.sent, model["id"], model["pid"], size))

    async def _at_rest(self) -> None:
        """No request runs or waits any more."""
        for _ in range(100):
            told = await self._stats()
            if not told["active"] and not told["waiting"]:
                return
            await asyncio.sleep(0.2)
        self.found.append(f"still active when everybody has left: {told}")

    def _growth(self) -> None:
        """Memory per thousand requests of every process that lived through at least a fifth of them."""
        for who, pid in dict.fromkeys((w, p) for _, w, p, _ in self.memory):
            points = [(n, b) for n, w, p, b in self.memory if (w, p) == (who, pid)]
            points = points[len(points) // 3 :]  # caches and heaps fill up at first
            if len(points) < 10 or points[-1][0] - points[0][0] < 0.2 * self.options.requests:
                continue
            x, y = np.array(points, float).T
            (slope, _), residue, *_ = np.polyfit(x, y, 1, full=True)
            noise = float(np.sqrt(residue[0] / len(x))) if len(residue) else 0.0
            grown = slope * (x[-1] - x[0])
            print(
                f"memory of {who} ({pid}): {y[0] / 1e6:.1f} to {y[-1] / 1e6:.1f} MB, {x[-1] - x[0]:.0f} requests, "
                f"slope {1000 * slope / 1e6:+.3f} MB per 1000 requests, scatter {noise / 1e6:.2f} MB"
            )
            if grown > max(2 * noise, 4e6):
                self.found.append(f"memory of {who} grows: {1000 * slope / 1e6:.2f} MB per 1000 requests")

    def _report(self, seconds: float) -> None:
        print(f"{self.sent} requests in {seconds:.0f} s; faults injected: {[name for _, name in self.faults]}")
        print(", ".join(f"{kind} {count}" for kind, count in self.counts.most_common()))
        print(f"known texts that took the other of two equally good tokens: {self.ties}")
        for what in self.found:
            print("FOUND", what[:1500])
        print("nothing found" if not self.found else f"{len(self.found)} found")


def _error_of(shot: Shot, status: int, body: bytes) -> str | None:
    """The error's message, also when it came in the middle of a stream."""
    if status != 200:
        return refusal(body)
    if not shot.stream:
        return None
    for line in reversed(body.splitlines()):
        if b'"error"' in line and (message := refusal(line.removeprefix(b"data: "))) is not None:
            return message
    return None


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "models").mkdir()
        write_poisoned(BUNDLED, home / "models" / POISONED, POISON)
        server = RunningServer(home)
        try:
            fine = asyncio.run(Soak(server, options).run())
            if server.process.poll() is not None:
                print("the server has ended")
                fine = False
        finally:
            with contextlib.suppress(ProcessLookupError):
                server.stop()
            log = server.log
            broken = [line for line in log.splitlines() if "Traceback" in line or "unexpected" in line]
            print(f"server log: {len(log)} bytes, {len(broken)} tracebacks")
            for part in log.split("Traceback")[1:6]:
                print(part[:3000])
        return 0 if fine and not broken else 1


if __name__ == "__main__":
    sys.exit(main())

"""Simulates users who share servers: waiting times and the cost of a token; or checks the simulation.

`python -m tests.bench.queueing --users 1000 --servers 4 --slots 32 --speeds 1:60,8:300,32:700` simulates.
`python -m tests.bench.queueing --check` measures a real server with the bundled model: its speed at each number of
concurrent answers, before and after users who think and ask, and compares.

Each user thinks (exponential distribution), asks, waits for the whole answer, and thinks again. A server answers
up to `slots` concurrent requests; others wait in order of arrival. Concurrent answers share the speed, which is
given for some numbers of answers and interpolated between them. A router sends each request to the server with the
fewest.
"""

import argparse
import bisect
import concurrent.futures
import heapq
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


@dataclass
class Load:
    """`tokens` of an answer (exponential unless `fixed`), `think_s` between answers, `read_s` of a prompt."""

    users: int
    think_s: float
    tokens: float
    read_s: float = 0.0
    fixed: bool = False


@dataclass
class Result:
    """Times in seconds: `waits` for a slot, `answers` from the request to the last token."""

    waits: list[float] = field(default_factory=list)
    answers: list[float] = field(default_factory=list)
    tokens: float = 0.0
    seconds: float = 0.0

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds

    def row(self) -> str:
        def at(values: list[float], share: float) -> float:
            return sorted(values)[min(len(values) - 1, int(len(values) * share))]

        waits, answers = self.waits, self.answers
        return (
            f"{self.tok_s:.1f} tok/s; wait mean {statistics.mean(waits):.2f} s, p95 {at(waits, 0.95):.2f}; "
            f"answer mean {statistics.mean(answers):.2f} s, p95 {at(answers, 0.95):.2f}"
        )


class Speed:
    """Tokens per second of one server with `n` concurrent answers, from a table."""

    def __init__(self, table: dict[int, float]) -> None:
        self._at = sorted(table)
        self._speeds = [table[n] for n in self._at]

    def __call__(self, n: int) -> float:
        if n >= self._at[-1]:
            return self._speeds[-1]
        if n <= self._at[0]:
            return self._speeds[0] * n / self._at[0]
        i = bisect.bisect_right(self._at, n)
        low, high = self._at[i - 1], self._at[i]
        return self._speeds[i - 1] + (self._speeds[i] - self._speeds[i - 1]) * (n - low) / (high - low)


@dataclass
class Server:
    """One server of the simulation: running requests (by the work at which each ends) and waiting ones."""

    speed: Speed
    slots: int
    active: list[tuple[float, int]] = field(default_factory=list)
    queue: deque[tuple[int, float]] = field(default_factory=deque)
    work: float = 0.0  # tokens that each answer would have got if it had run from the start
    at: float = 0.0

    def go_to(self, now: float) -> None:
        if self.active:
            self.work += (now - self.at) * self.speed(len(self.active)) / len(self.active)
        self.at = now

    def next_end(self) -> float:
        if not self.active:
            return float("inf")
        return self.at + (self.active[0][0] - self.work) * len(self.active) / self.speed(len(self.active))


def simulate(
    load: Load, speed: Speed, slots: int, servers: int = 1, answers: int = 20_000, seed: int = 1
) -> Result:
    """Run until this many answers were given; the first tenth is not counted."""
    dice, result = random.Random(seed), Result()
    pool = [Server(speed, slots) for _ in range(servers)]
    asks = [(dice.expovariate(1 / load.think_s), user) for user in range(load.users)]
    heapq.heapify(asks)
    asked, sizes, where = {}, {}, {}
    skip, done, began = answers // 10, 0, 0.0

    def start(server: Server, user: int, now: float) -> None:
        heapq.heappush(server.active, (server.work + sizes[user] + load.read_s * speed(1), user))
        if done >= skip:
            result.waits.append(now - asked[user])

    while done < answers + skip:
        server = min(pool, key=Server.next_end)
        ends = server.next_end()
        if asks and asks[0][0] <= ends:
            now, user = heapq.heappop(asks)
            chosen = min(pool, key=lambda s: len(s.active) + len(s.queue))
            chosen.go_to(now)
            asked[user], where[user] = now, chosen
            sizes[user] = load.tokens if load.fixed else 1 + dice.expovariate(1 / load.tokens)
            if len(chosen.active) < chosen.slots:
                start(chosen, user, now)
            else:
                chosen.queue.append((user, now))
            continue
        server.go_to(ends)
        _, user = heapq.heappop(server.active)
        done += 1
        if done == skip:
            began = ends
        if done > skip:
            result.answers.append(ends - asked[user])
            result.tokens += sizes[user]
        heapq.heappush(asks, (ends + dice.expovariate(1 / load.think_s), user))
        if server.queue:
            start(server, server.queue.popleft()[0], ends)
    result.seconds = max(pool, key=lambda s: s.at).at - began
    return result


def cost(watts: float, price_kwh: float, machine: float, years: float, tok_s: float, busy: float) -> float:
    """The cost of a million tokens: electricity while it works, and the machine over its life at this load."""
    hours = 1e6 / tok_s / 3600
    return hours * (watts / 1000 * price_kwh + machine / (years * 8766 * busy))


def ask(http, tokens: int) -> float:
    """Seconds of one complete answer of exactly this many tokens."""
    body = {
        "model": "spark",
        "prompt": "Once",
        "max_tokens": tokens,
        "ignore_eos": True,
        "seed": random.randrange(1 << 30),
    }
    begun = time.monotonic()
    http.post("/v1/completions", json=body).raise_for_status()
    return time.monotonic() - begun


def speeds_of(http, threads, slots: int, tokens: int) -> dict[int, float]:
    """Total tokens per second, by concurrent answers."""
    table = {}
    for at_once in range(1, slots + 1):
        begun = time.monotonic()
        list(threads.map(lambda _: [ask(http, tokens) for _ in range(4)], range(at_once)))
        table[at_once] = at_once * 4 * tokens / (time.monotonic() - begun)
    return table


def check(slots: int = 2, tokens: int = 400, think_s: float = 1.0, seconds: float = 20.0) -> None:
    """Measure a real server and compare: speeds in turns with loads, because other programs take a share."""
    import httpx2

    from tests.support.servers import RunningServer

    with tempfile.TemporaryDirectory() as home:
        server = RunningServer(Path(home), "--parallel", str(slots))
        limits = httpx2.Limits(max_connections=100)
        try:
            with (
                httpx2.Client(base_url=server.url, timeout=300, limits=limits) as http,
                concurrent.futures.ThreadPoolExecutor(64) as threads,
            ):
                ask(http, 8)
                for users in (1, 2, 4, 8):
                    before = speeds_of(http, threads, slots, tokens)
                    stop, found = time.monotonic() + seconds, Result(waits=[0.0])

                    def person(number: int, stop: float = stop, found: Result = found) -> None:
                        dice = random.Random(number)
                        while time.monotonic() < stop:
                            time.sleep(dice.expovariate(1 / think_s))
                            found.answers.append(ask(http, tokens))
                            found.tokens += tokens

                    begun = time.monotonic()
                    list(threads.map(person, range(users)))
                    found.seconds = time.monotonic() - begun
                    after = speeds_of(http, threads, slots, tokens)
                    table = {n: (before[n] + after[n]) / 2 for n in before}
                    load = Load(users, think_s, tokens, fixed=True)
                    said = simulate(load, Speed(table), slots, answers=5000)
                    speeds = ", ".join(f"{n}: {v:.0f}" for n, v in table.items())
                    print(f"{users} users, tok/s by answers at once {speeds}")
                    for name, result in (("measured", found), ("simulated", said)):
                        mean = statistics.mean(result.answers)
                        print(f"  {name:9} {result.tok_s:7.1f} tok/s, whole answer mean {mean:.3f} s")
                    slower = statistics.mean(said.answers) / statistics.mean(found.answers)
                    print(f"  ratio     {said.tok_s / found.tok_s:7.3f}, {slower:.3f}", flush=True)
        finally:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--users", type=int, default=10)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument(
        "--speeds", default="1:30,4:75,8:110", help="answers at once : tokens a second of all together"
    )
    parser.add_argument("--think", type=float, default=60.0, help="seconds between an answer and the next question")
    parser.add_argument("--tokens", type=float, default=400.0)
    parser.add_argument("--read", type=float, default=0.3, help="seconds to read a prompt alone")
    parser.add_argument("--watts", type=float, default=150.0)
    parser.add_argument("--kwh", type=float, default=0.30, help="price of a kilowatt-hour")
    parser.add_argument("--machine", type=float, default=1500.0, help="price of one server")
    parser.add_argument("--years", type=float, default=4.0)
    given = parser.parse_args()
    if given.check:
        check()
        return
    table = {int(n): float(v) for n, v in (pair.split(":") for pair in given.speeds.split(","))}
    load = Load(given.users, given.think, given.tokens, given.read)
    answers = max(20_000, 4 * given.users)
    found = simulate(load, Speed(table), given.slots, given.servers, answers)
    each = found.tok_s / given.servers
    busy = min(1.0, each / Speed(table)(given.slots))
    price = cost(given.watts, given.kwh, given.machine, given.years, max(each, 1e-9) / busy, busy)
    print(f"{given.users} users, {given.servers} servers of {given.slots} slots: {found.row()}; busy {busy:.0%}; "
          f"a million tokens {price:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()

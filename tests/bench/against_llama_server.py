"""Compares the engine with llama-server and llama-bench of the same llama.cpp commit, alternating in one run.

    python tests/bench/against_llama_server.py MODEL.gguf --tools FOLDER [--rounds 5] [--only NAME ...]

FOLDER contains llama-server and llama-bench, built with cmake from the llama-cpp-python source archive. MODEL may
be a dummy-weight model: `python -m engine.job_kinds.bench.dummy_model OUT.gguf --shape qwen3-0.6b --type Q4_K`.
Prints one line per comparison: the medians of both sides and the median ratio of the rounds (above 1: Tessera is
faster, unless the line says otherwise).
"""

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.clients import complete, together
from tests.bench.recording import record
from tests.bench.rival import LlamaServer, llama_bench
from tests.support.servers import RunningServer

CONTEXT = 32768
# The system cleans up the memory of a process that ended; this would slow the next measurement.
AFTER_PROCESS_S = 6.0
RIVAL_ROUNDS = 2


class Sides:
    """Both servers over one model; `ask(side, …)` sends a request to one of them."""

    def __init__(
        self, model: str, tools: Path, home: Path, threads: int, parallel: int | None, context: int = CONTEXT // 4
    ) -> None:
        self.model, self.tools, self.home, self.threads = model, tools, home, threads
        models = home / "models"
        models.mkdir()
        self.name = f"bench-{Path(model).name}"
        (models / self.name).symlink_to(Path(model).resolve())
        slots = ("--parallel", str(parallel)) if parallel else ()
        self.ours = RunningServer(home, "--ctx", str(context), *slots)
        self.rival = LlamaServer(tools, model, threads=threads, context=max(CONTEXT, context), parallel=16)

    def ask(self, side: str, prompt, tokens: int, **options):
        url = self.ours.url if side == "ours" else self.rival.url
        return complete(url, self.name, prompt, tokens, **options)

    def close(self) -> None:
        self.ours.stop()
        self.rival.stop()


def fresh(rng: random.Random, count: int) -> list[int]:
    """A prompt that is not cached."""
    return [rng.randrange(300, 4000) for _ in range(count)]


def report(name: str, ours: list[float], rival: list[float], unit: str, *, lower: bool = False) -> None:
    """One line, and a recorded ratio: the model is the one that the command line names."""
    ratios = [o / r for o, r in zip(ours, rival, strict=True)]
    model = next((Path(word).stem for word in sys.argv[1:] if word.endswith(".gguf")), "")
    spread = (round(min(ratios), 3), round(max(ratios), 3))
    ratio = round(statistics.median(ratios), 3)
    record("table", name, ratio, "times llama-server", n=len(ratios), interval=spread, model=model)
    better = "lower is better" if lower else "higher is better"
    print(
        f"{name}: ours {statistics.median(ours):.3f} {unit}, theirs {statistics.median(rival):.3f} {unit}, ratio "
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f}..{max(ratios):.3f}), {better}",
        flush=True,
    )


def decode(sides: Sides, rounds: int, rng: random.Random) -> None:
    """One sequence: decode of 64 tokens, prefill of 2,048, against llama-server and llama-bench."""
    speeds: dict[str, list[float]] = {"ours": [], "rival": [], "bench": []}
    prefill: dict[str, list[float]] = {"ours": [], "rival": [], "bench": []}
    for i in range(rounds):
        for side in ("ours", "rival") if i % 2 else ("rival", "ours"):
            reply = sides.ask(side, fresh(rng, 16), 65)
            speeds[side].append(64 / (reply.arrivals[-1] - reply.arrivals[0]))
            prefill[side].append(2048 / sides.ask(side, fresh(rng, 2048), 1).first)
        bench = llama_bench(sides.tools, sides.model, threads=sides.threads, prompt=2048, generate=64)
        speeds["bench"].append(bench["tg"])
        prefill["bench"].append(bench["pp"])
        time.sleep(AFTER_PROCESS_S)
    report("decode against llama-server", speeds["ours"], speeds["rival"], "tok/s")
    report("decode against llama-bench", speeds["ours"], speeds["bench"], "tok/s")
    report("prefill against llama-server", prefill["ours"], prefill["rival"], "tok/s")
    report("prefill against llama-bench", prefill["ours"], prefill["bench"], "tok/s")


def deep(sides: Sides, rounds: int, rng: random.Random) -> None:
    """One sequence after a prompt of 4,096 tokens: reading it, and decode of 32 tokens."""
    speeds: dict[str, list[float]] = {"ours": [], "rival": []}
    first: dict[str, list[float]] = {"ours": [], "rival": []}
    for _ in range(rounds):
        for side in ("ours", "rival"):
            reply = sides.ask(side, fresh(rng, 4096), 33)
            speeds[side].append(32 / (reply.arrivals[-1] - reply.arrivals[0]))
            first[side].append(reply.first)
    report("decode behind 4k", speeds["ours"], speeds["rival"], "tok/s")
    report("first token of 4k", first["ours"], first["rival"], "s", lower=True)


def concurrent(sides: Sides, rounds: int, rng: random.Random) -> None:
    """4, 8 and 16 concurrent requests of mixed length: total tokens/s."""
    for count in (4, 8, 16):
        totals: dict[str, list[float]] = {"ours": [], "rival": []}
        for i in range(rounds):
            work = [(fresh(rng, rng.randrange(16, 128)), rng.randrange(24, 64)) for _ in range(count)]
            for side in ("ours", "rival") if i % 2 else ("rival", "ours"):
                _, seconds = together([lambda p=p, n=n, s=side: sides.ask(s, p, n) for p, n in work])
                totals[side].append(sum(n for _, n in work) / seconds)
        report(f"{count} at once, total", totals["ours"], totals["rival"], "tok/s")


def gaps(sides: Sides, rounds: int, rng: random.Random) -> None:
    """Three answers while a 4k prompt arrives: the gaps between their tokens while it is read, and overall."""
    found: dict[str, dict[str, list[float]]] = {}
    for i in range(rounds):
        prompts, late = [fresh(rng, 64) for _ in range(3)], fresh(rng, 4096)
        for side in ("ours", "rival") if i % 2 else ("rival", "ours"):

            def begin_late(side=side, late=late):
                time.sleep(1.5)
                return sides.ask(side, late, 2)

            calls = [lambda p=p, s=side: sides.ask(s, p, 160) for p in prompts]
            replies, seconds = together([*calls, begin_late])
            during = sorted(w for r in replies[:3] for w in r.waits_during(replies[3]))
            whole = sorted(w for r in replies[:3] for w in r.waits)
            for name, value in (
                ("p95 wait for a token while a 4k prompt is read", p95(during)),
                ("longest wait", whole[-1]),
                ("p95 wait of the whole answers", p95(whole)),
                ("first token of that prompt", replies[3].first),
                ("until all four are done", seconds),
            ):
                found.setdefault(name, {"ours": [], "rival": []})[side].append(value)
    for name, values in found.items():
        report(name, values["ours"], values["rival"], "s", lower=True)


def p95(ordered: list[float]) -> float:
    """The value that 95 % of `ordered` do not exceed."""
    return ordered[math.ceil(0.95 * len(ordered)) - 1]


def shared(sides: Sides, rounds: int, rng: random.Random) -> None:
    """Eight requests that share a 2k prefix arrive together: time until the last has its first token."""
    last: dict[str, list[float]] = {"ours": [], "rival": []}
    turn: dict[str, list[float]] = {"ours": [], "rival": []}
    for _ in range(rounds):
        prefix = fresh(rng, 2048)
        prompts = [prefix + fresh(rng, 16) for _ in range(8)]
        chat = fresh(rng, 4096)
        for side in ("ours", "rival"):
            replies, _ = together([lambda p=p, s=side: sides.ask(s, p, 4) for p in prompts])
            last[side].append(max(r.first for r in replies))
            sides.ask(side, chat, 16)
            turn[side].append(sides.ask(side, chat + fresh(rng, 24), 2).first)
    report("eight share 2k: last first token", last["ours"], last["rival"], "s", lower=True)
    report("second turn of a 4k chat: first token", turn["ours"], turn["rival"], "s", lower=True)


def arrivals(sides: Sides, rounds: int, rng: random.Random) -> None:
    """Eight requests that share 2,000 tokens nobody has computed, with gaps between them: the last first token.

    llama-server computes each of them in a minute with little variation, so it is measured in the first rounds
    only; each of ours is compared with its fastest.
    """
    for gap_s in (0.0, 0.005, 0.05, 0.5):
        last: dict[str, list[float]] = {"ours": [], "rival": []}
        for i in range(rounds):
            prefix = fresh(rng, 2000)
            prompts = [prefix + fresh(rng, 16) for _ in range(8)]
            for side in ("ours", "rival")[: 2 if i < RIVAL_ROUNDS else 1]:

                def later(delay_s, prompt, side=side):
                    time.sleep(delay_s)
                    return sides.ask(side, prompt, 4)

                began = time.perf_counter()
                replies, _ = together([lambda d=n * gap_s, p=p: later(d, p) for n, p in enumerate(prompts)])
                last[side].append(max(r.started + r.first for r in replies) - began)
        fastest, ours = min(last["rival"]), sorted(last["ours"])
        print(
            f"eight share 2,000, {gap_s * 1000:.0f} ms apart: last first token {statistics.median(ours):.2f} s "
            f"({ours[0]:.2f} to {ours[-1]:.2f} in {rounds} rounds), theirs {fastest:.2f} s: "
            f"{statistics.median(ours) / fastest:.3f}, at worst {ours[-1] / fastest:.3f}",
            flush=True,
        )


def restart(sides: Sides, rounds: int, rng: random.Random) -> None:
    """A known 1.5k prompt after a restart of our runner, against the same prompt cold; two rounds at most.

    A runner that ended three times in five minutes is not started again.
    """
    cold, warm = [], []
    for _ in range(min(rounds, 2)):
        prompt = fresh(rng, 1500)
        cold.append(sides.ask("ours", prompt, 2).first)
        time.sleep(3)  # the pause in which prefixes are written
        (runner,) = sides.ours.runners()
        runner.kill()
        time.sleep(0.5)
        sides.ask("ours", fresh(rng, 8), 2)  # the load itself is not measured
        warm.append(sides.ask("ours", prompt, 2).first)
    report("known prompt after a restart against cold", warm, cold, "s", lower=True)


def speculation(sides: Sides, rounds: int, rng: random.Random) -> None:
    """A text that repeats itself, with and without speculation, and one that does not."""
    block = fresh(rng, 60)
    for name, prompt in (("repeating", block * 4), ("not repeating", fresh(rng, 240))):
        on, off = [], []
        for _ in range(rounds):
            for found, flags in ((on, {}), (off, {"speculate": False})):
                reply = sides.ask("ours", prompt, 97, **flags)
                found.append(96 / (reply.arrivals[-1] - reply.arrivals[0]))
        report(f"guessing ahead, {name} prompt, on against off", on, off, "tok/s")


COMPARISONS = {f.__name__: f for f in (decode, deep, concurrent, gaps, shared, arrivals, restart, speculation)}


def main() -> None:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parallel", type=int, help="requests we answer at once (default: the server's own)")
    parser.add_argument("--only", nargs="*", choices=COMPARISONS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        sides = Sides(options.model, options.tools, Path(home), options.threads, options.parallel)
        try:
            for side in ("ours", "rival"):
                sides.ask(side, [300] * 8, 8)
            for name in options.only or COMPARISONS:
                COMPARISONS[name](sides, options.rounds, random.Random(1))
        finally:
            sides.close()


if __name__ == "__main__":
    main()

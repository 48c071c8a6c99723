"""Compares CPU seconds of both servers for the same work, alternating; usable on a machine that other programs use.

    python tests/bench/processor_seconds.py MODEL.gguf --tools FOLDER [--rounds 5] [--only ROW ...]

FOLDER contains llama-server (see against_llama_server.py). Each side has one thread, because threads that wait for
each other at barriers use CPU time. Counted are user and system seconds of a server and all its children. With a
ratio above 1, Tessera does more work per second. The figures are not waiting times.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from app.client import Client
from engine.api.models import LoadOptions
from tests.bench.against_llama_server import Sides, fresh, report
from tests.bench.clients import together
from tests.bench.starting import spent
from tests.bench.table import Values, in_turns

# Late routes, the dry run and the grammar table are created in the pauses after a first answer.
SETTLED_S = 20.0


def cost(sides: Sides, side: str, requests: list[tuple[list[int], int]], **options) -> float:
    """CPU seconds of one side for concurrent requests (prompt, tokens of the answer)."""
    process = sides.ours.process if side == "ours" else sides.rival.process
    before = spent(process.pid)
    together([lambda p=p, n=n: sides.ask(side, p, n, **options) for p, n in requests])
    return spent(process.pid) - before


def compared(
    name: str, sides: Sides, rounds: int, make: Callable[[], list[tuple[list[int], int]]], **options
) -> None:
    """One line: tokens per CPU second."""
    found: Values = {"ours": [], "rival": []}
    for turns in in_turns(rounds):
        requests = make()
        tokens = sum(len(prompt) + answer for prompt, answer in requests)
        for side in turns:
            found[side].append(tokens / cost(sides, side, requests, **options))
    report(f"{name}, tokens a processor second", *found.values(), "tok/s")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    rng = random.Random(1)
    sampled = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7}

    def short(count: int):
        return lambda: [(fresh(rng, rng.randrange(16, 128)), rng.randrange(24, 64)) for _ in range(count)]

    rows: dict[str, tuple[Callable[[], list[tuple[list[int], int]]], dict]] = {
        "decode": (lambda: [(fresh(rng, 8), 128)], {}),
        "reading": (lambda: [(fresh(rng, 1500), 1)], {}),
        "reading 4,096": (lambda: [(fresh(rng, 4096), 1)], {}),
        "four": (short(4), {}),
        "eight": (short(8), {}),
        "sixteen": (short(16), {}),
        "sampled": (short(8), sampled),
        "long": (lambda: [(fresh(rng, rng.randrange(300, 600)), 48) for _ in range(8)], {}),
        "sharing": (lambda: _sharing(rng), {}),
    }
    with tempfile.TemporaryDirectory() as home:
        sides = Sides(str(options.model.resolve()), options.tools, Path(home), 1, 16)
        try:
            with Client(sides.ours.url, sides.ours.token) as client:
                client.set_load_settings(sides.name, LoadOptions(n_threads=1))
            for side in ("ours", "rival"):
                sides.ask(side, [300] * 8, 8)
            time.sleep(SETTLED_S)
            for name, (make, more) in rows.items():
                if options.only is None or name in options.only:
                    compared(name, sides, options.rounds, make, **more)
        finally:
            sides.close()


def _sharing(rng: random.Random) -> list[tuple[list[int], int]]:
    prefix = fresh(rng, 800)
    return [(prefix + fresh(rng, 16), 4) for _ in range(8)]


if __name__ == "__main__":
    main()

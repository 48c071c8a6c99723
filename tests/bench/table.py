"""The whole table against llama-server of the same commit, and the curves over long contexts, in one command.

    python tests/bench/table.py MODEL.gguf --tools FOLDER [--rounds 5] [--only ROW ...] [--depths 2048 4096 8000]

FOLDER holds llama-server, see against_llama_server.py. Both sides may answer 16 requests at once, take turns in who
is first, and read prompts that nobody has seen. MODEL may be a stand-in, for curves beyond what a real one knows
(`--context 32768 --only curves --depths 2048 8192 32000`). One line a figure: medians of both sides, and the median
and range of the rounds' ratios.
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

from tests.bench import starting
from tests.bench.against_llama_server import Sides, arrivals, concurrent, fresh, gaps, report
from tests.bench.clients import together

Values = dict[str, list[float]]


def in_turns(rounds: int) -> list[tuple[str, ...]]:
    """Who is asked in each round, first to last."""
    return [("ours", "rival") if i % 2 else ("rival", "ours") for i in range(rounds)]


def start(model: Path, tools: Path, rounds: int) -> None:
    """Process start to first token: as shipped, and with 16 requests at once. Folders nobody has used."""
    for name, more in (("as shipped", ()), ("--parallel 16", ("--parallel", "16"))):
        wall: Values = {"ours": [], "rival": []}
        spent: Values = {"ours": [], "rival": []}
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as homes:  # a last child may still compile
            starting.compile_program(model, Path(homes))
            for i, turns in enumerate(in_turns(rounds)):
                for side in turns:
                    ours = side == "ours"
                    folder = Path(homes) / str(i)
                    seconds, cpu = starting.ours(model, folder, *more) if ours else starting.theirs(model, tools)
                    wall[side].append(seconds)
                    spent[side].append(cpu)
        report(f"process start to first token, {name}", wall["ours"], wall["rival"], "s", lower=True)
        report(f"  its processor time, {name}", spent["ours"], spent["rival"], "s", lower=True)


def single(sides: Sides, rounds: int, rng: random.Random) -> None:
    """One request: decode of 128 tokens, reading 1,500 and decoding behind them, the second turn of that chat."""
    found: dict[str, Values] = {n: {"ours": [], "rival": []} for n in ("short", "deep", "first", "turn")}
    for turns in in_turns(rounds):
        chat, question = fresh(rng, 1500), fresh(rng, 24)
        for side in turns:
            reply = sides.ask(side, fresh(rng, 16), 129)
            found["short"][side].append(128 / (reply.arrivals[-1] - reply.arrivals[0]))
            reply = sides.ask(side, chat, 65)
            found["first"][side].append(reply.first)
            found["deep"][side].append(64 / (reply.arrivals[-1] - reply.arrivals[0]))
            found["turn"][side].append(sides.ask(side, chat + question, 2).first)
    report("decode, 128 tokens", *found["short"].values(), "tok/s")
    report("decode behind 1,500", *found["deep"].values(), "tok/s")
    report("first token of 1,500", *found["first"].values(), "s", lower=True)
    report("second turn, first token", *found["turn"].values(), "s", lower=True)


def long_prompts(sides: Sides, rounds: int, rng: random.Random) -> None:
    """4 and 8 requests at once with prompts of several hundred tokens and answers of 48."""
    for count in (4, 8):
        totals: Values = {"ours": [], "rival": []}
        for turns in in_turns(rounds):
            prompts = [fresh(rng, rng.randrange(300, 600)) for _ in range(count)]
            for side in turns:
                _, seconds = together([lambda p=p, s=side: sides.ask(s, p, 48) for p in prompts])
                totals[side].append(48 * count / seconds)
        report(f"{count} at once, prompts of several hundred, total", *totals.values(), "tok/s")


def counted(sides: Sides, rounds: int, rng: random.Random) -> None:
    """Eight that share 2,000 tokens nobody has computed: tokens we read of those asked for."""
    for gap_s in (0.0, 0.005, 0.05, 0.5):
        shares = []
        for _ in range(rounds):
            prefix = fresh(rng, 2000)
            prompts = [prefix + fresh(rng, 16) for _ in range(8)]

            def later(delay_s: float, prompt: list[int]):
                time.sleep(delay_s)
                return sides.ask("ours", prompt, 4)

            replies, _ = together([lambda d=n * gap_s, p=p: later(d, p) for n, p in enumerate(prompts)])
            cached = sum(r.usage["prompt_tokens_details"]["cached_tokens"] for r in replies)
            shares.append(1 - cached / sum(map(len, prompts)))
        print(
            f"eight share 2,000, {gap_s * 1000:.0f} ms apart: read {min(shares):.3f} to {max(shares):.3f} of all "
            f"prompt tokens in {rounds} rounds",
            flush=True,
        )


def curves(sides: Sides, rounds: int, rng: random.Random, depths: list[int]) -> None:
    """Reading a prompt, and decoding 32 tokens behind it, by depth."""
    for depth in depths:
        prefill: Values = {"ours": [], "rival": []}
        decode: Values = {"ours": [], "rival": []}
        for turns in in_turns(rounds):
            for side in turns:
                reply = sides.ask(side, fresh(rng, depth), 33)
                prefill[side].append(depth / reply.first)
                decode[side].append(32 / (reply.arrivals[-1] - reply.arrivals[0]))
        report(f"curve: reading {depth:,}", *prefill.values(), "tok/s")
        report(f"curve: decode behind {depth:,}", *decode.values(), "tok/s")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=8192, help="tokens a request may have")
    parser.add_argument("--depths", type=int, nargs="*", default=[2048, 4096, 8000])
    rows: dict[str, Callable[[Sides, int, random.Random], None]] = {
        f.__name__: f for f in (single, concurrent, long_prompts, arrivals, counted, gaps)
    }
    parser.add_argument("--only", nargs="*", choices=["start", *rows, "curves"])
    options = parser.parse_args()
    wanted = options.only or ["start", *rows, "curves"]
    model = options.model.resolve()
    if "start" in wanted:
        start(model, options.tools, options.rounds)
    if wanted == ["start"]:
        return
    if max(options.depths, default=0) + 64 > options.context:
        parser.error(f"--context {options.context} has no room for an answer behind {max(options.depths)}")
    with tempfile.TemporaryDirectory() as home:
        sides = Sides(str(model), options.tools, Path(home), options.threads, 16, options.context)
        try:
            for side in ("ours", "rival"):
                sides.ask(side, [300] * 8, 8)
            for name, row in rows.items():
                if name in wanted:
                    row(sides, options.rounds, random.Random(1))
            if "curves" in wanted:
                curves(sides, options.rounds, random.Random(2), options.depths)
        finally:
            sides.close()


if __name__ == "__main__":
    main()

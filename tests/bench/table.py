"""Fills the whole table against llama-server of the same commit, and the curves over long contexts.

    python tests/bench/table.py MODEL.gguf --tools FOLDER [--rounds 5] [--only ROW ...] [--depths 2048 4096 8000]
    python tests/bench/table.py --cells GROUP ... --tools FOLDER [--clock processor] [--quarter] [--types TYPE ...]

FOLDER contains llama-server (see against_llama_server.py). Both sides may answer 16 concurrent requests, alternate
in who is first, and get new prompts. MODEL may be a dummy-weight model, for curves beyond the context of a real
one (`--context 32768 --only curves --depths 2048 8192 32000`). Each figure is one line: the medians of both sides,
and the median and range of the ratios per round.

`--cells` writes dummy-weight models (into `--models`, where they stay) and fills groups of cells with one result
each: `types` are all types on the 0.6B shape, `lengths` and `parallel` Q4_K_M and Q4_0 of 0.6B, 1.7B and a
mixture, `mixtures` more types of the mixture, `large` 4B and 8B, `short` one prompt and answer of 1.7B, 4B and 8B.
`--clock processor` compares CPU seconds with one thread per side, for a machine that other programs use; these
figures are not waiting times. `--quarter` uses a quarter of the layers and of the vocabulary, so the parts of a
token's work keep their proportions. For a CPU without AVX-512 both sides are built with `-march=x86-64-v3`, and
Tessera runs with `TESSERA_TILES=avx2`; `--instructions AVX2` records that.
"""

import argparse
import contextlib
import io
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from msgspec.structs import replace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from app.client import Client
from engine.api.models import LoadOptions
from engine.job_kinds.bench import dummy_model, shapes
from tests.bench import starting
from tests.bench.against_llama_server import Sides, arrivals, concurrent, fresh, gaps, report
from tests.bench.clients import complete, together
from tests.bench.recording import record

Values = dict[str, list[float]]


def in_turns(rounds: int) -> list[tuple[str, ...]]:
    """The order of the sides in each round."""
    return [("ours", "rival") if i % 2 else ("rival", "ours") for i in range(rounds)]


def start(model: Path, tools: Path, rounds: int) -> None:
    """Process start to first token: as shipped, and with 16 requests at once. Uses new folders."""
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
    """Eight requests that share 2,000 uncached tokens: share of the tokens that Tessera computed."""
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


TYPES = ("Q4_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "IQ4_XS", "IQ3_XXS", "MXFP4", "F16", "BF16")
SMALL, LARGE = ("0.6B", "1.7B", "mixture"), ("4B", "8B")
# The mixture has the proportions of Qwen3-30B-A3B with half the experts.
STAND_INS = {
    **{name: shapes.SHAPES[f"qwen3-{name.lower()}"] for name in ("0.6B", "1.7B", *LARGE)},
    "mixture": shapes.Dimensions("qwen3moe", 8, 1024, 16, 4, 64, 2048, 32000, tied=True, experts=(64, 8, 512)),
}
# What our server does after a first answer (late routes, a dry run) is over then.
SETTLED_S = 20.0
DECODED = 32
# As chats are sent. At temperature 0 our answers repeat bit for bit, so prompts are read in steps of 64 tokens.
SAMPLED = {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


@dataclass(frozen=True)
class Cells:
    """What is measured with one stand-in: prompts of some lengths, answers behind some, requests at once."""

    shape: str
    qtype: str
    prompts: tuple[int, ...] = ()
    depths: tuple[int, ...] = ()
    requests: tuple[int, ...] = ()


GROUPS = {
    "types": [Cells("0.6B", t, (512,), (0,)) for t in TYPES],
    "lengths": [Cells(s, t, (512, 4096, 16384), (0, 4096, 16384)) for s in SMALL for t in ("Q4_K_M", "Q4_0")],
    "parallel": [Cells(s, t, requests=(1, 4, 16)) for s in SMALL for t in ("Q4_K_M", "Q4_0")],
    "mixtures": [Cells("mixture", t, (512,), (0,)) for t in ("Q4_K_M", "Q4_0", "Q8_0", "MXFP4")],
    "large": [Cells(s, "Q4_K_M", (512, 4096), (0, 4096), (1, 4)) for s in LARGE],
    "short": [Cells(s, "Q4_K_M", (512,), (0,)) for s in ("1.7B", *LARGE)],
}


def stand_in(cells: Cells, folder: Path, *, quarter: bool) -> Path:
    """The stand-in's file, written where it is missing."""
    d = STAND_INS[cells.shape]
    if quarter:
        d = replace(d, layers=d.layers // 4, vocab=d.vocab // 4)
    path = folder / f"{cells.shape}-{cells.qtype}{'-quarter' if quarter else ''}.gguf"
    if not path.exists():
        print(f"writing {path.name}", file=sys.stderr, flush=True)
        metadata, slots = dummy_model.spec_of_dimensions(cells.shape, d, cells.qtype)
        unfinished = path.with_suffix(".part")
        with contextlib.redirect_stdout(io.StringIO()):
            dummy_model.write(unfinished, metadata, slots)
        unfinished.rename(path)
    return path


class Clock:
    """Seconds of one side: wall-clock, or the CPU time of a process and of all its descendants at this moment."""

    def __init__(self, pid: int, *, processor: bool) -> None:
        process = psutil.Process(pid)
        pids = [pid, *(child.pid for child in process.children(recursive=True))]
        # The clock of another process. Source: Linux, include/linux/posix-timers.h, CPUCLOCK_SCHED.
        clocks = [~pid << 3 | 2 for pid in pids] if processor else [time.CLOCK_MONOTONIC]
        self._seconds = dict.fromkeys(clocks, 0.0)

    def __call__(self) -> float:
        for clock in self._seconds:
            with contextlib.suppress(OSError):  # a child that has ended keeps its time
                self._seconds[clock] = time.clock_gettime(clock)
        return sum(self._seconds.values())


def measure(cells: Cells, sides: Sides, rounds: int, rng: random.Random, *, processor: bool) -> dict[str, Values]:
    """Speeds of both sides: metric and parameter → the rounds' tokens a second."""
    clocks: dict[str, Clock] = {}
    pids = {"ours": sides.ours.process.pid, "rival": sides.rival.process.pid}
    urls = {"ours": sides.ours.url, "rival": sides.rival.url}
    found: dict[str, Values] = {}

    def ask(side: str, prompt: list[int], tokens: int):
        return complete(urls[side], sides.name, prompt, tokens, clock=clocks[side], **SAMPLED)

    for turns in in_turns(rounds):
        clocks.update((side, Clock(pid, processor=processor)) for side, pid in pids.items())
        work = {
            **{f"prompt speed/tokens={n}": fresh(rng, n) for n in cells.prompts},
            **{f"decode speed/depth={n}": fresh(rng, max(16, n)) for n in cells.depths},
        }
        for name, prompt in work.items():
            for side in turns:
                values = found.setdefault(name, {"ours": [], "rival": []})[side]
                if name.startswith("prompt"):
                    values.append(len(prompt) / ask(side, prompt, 1).first)
                else:
                    reply = ask(side, prompt, DECODED + 1)
                    values.append(DECODED / (reply.arrivals[-1] - reply.arrivals[0]))
        for count in cells.requests:
            prompts = [fresh(rng, rng.randrange(16, 128)) for _ in range(count)]
            for side in turns:
                began = clocks[side]()
                together([lambda p=p, s=side: sides.ask(s, p, DECODED, **SAMPLED) for p in prompts])
                values = found.setdefault(f"throughput/requests={count}", {"ours": [], "rival": []})[side]
                values.append(DECODED * count / (clocks[side]() - began))
    return found


def fill(cells: Cells, options: argparse.Namespace) -> None:
    """Measure one stand-in's cells, print them and add them to the results."""
    path, processor = stand_in(cells, options.models, quarter=options.quarter), options.clock == "processor"
    context = max((512, *cells.prompts, *cells.depths)) + 256
    with tempfile.TemporaryDirectory() as home:
        sides = Sides(str(path), options.tools, Path(home), 1 if processor else options.threads, 16, context)
        try:
            if processor:
                with Client(sides.ours.url, sides.ours.token) as client:
                    client.set_load_settings(sides.name, LoadOptions(n_threads=1))
            for side in ("ours", "rival"):
                sides.ask(side, [300] * 8, 8)
            time.sleep(SETTLED_S)
            found = measure(cells, sides, options.rounds, random.Random(1), processor=processor)
        finally:
            sides.close()
    model = f"{cells.shape} shape, a quarter" if options.quarter else f"{cells.shape} shape"
    for name, values in found.items():
        metric, _, parameter = name.partition("/")
        key, _, number = parameter.partition("=")
        ratios = [ours / theirs for ours, theirs in zip(values["ours"], values["rival"], strict=True)]
        ratio, spread = statistics.median(ratios), (round(min(ratios), 3), round(max(ratios), 3))
        unit = "times llama-server" + (", processor time" if processor else "")
        note = "; ".join(filter(None, (options.note, f"load {os.getloadavg()[0]:.0f}")))
        parameters = {"model": model, "type": cells.qtype, key: int(number)}
        parameters |= {"instructions": options.instructions} if options.instructions else {}
        record("table", metric, round(ratio, 3), unit, n=len(ratios), interval=spread, note=note, **parameters)
        print(
            f"{model} {cells.qtype}: {metric}, {parameter}: ours {statistics.median(values['ours']):.1f}, theirs "
            f"{statistics.median(values['rival']):.1f} tok/s, ratio {ratio:.3f} ({spread[0]}..{spread[1]})",
            flush=True,
        )


ROWS: dict[str, Callable[[Sides, int, random.Random], None]] = {
    f.__name__: f for f in (single, concurrent, long_prompts, arrivals, counted, gaps)
}


def given() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--cells", nargs="+", choices=GROUPS)
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--quarter", action="store_true")
    parser.add_argument("--types", nargs="*", help="only cells of these types")
    parser.add_argument("--shapes", nargs="*", help="only cells of these shapes")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "tessera-stand-ins")
    parser.add_argument("--instructions", default="", help="what both sides are built for")
    parser.add_argument("--note", default="", help="begins the note of each line, such as the kernels in use")
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=8192, help="tokens a request may have")
    parser.add_argument("--depths", type=int, nargs="*", default=[2048, 4096, 8000])
    parser.add_argument("--only", nargs="*", choices=["start", *ROWS, "curves"])
    options = parser.parse_args()
    if options.model is None and not options.cells:
        parser.error("a MODEL or --cells is needed")
    if not options.cells and max(options.depths, default=0) + 64 > options.context:
        parser.error(f"--context {options.context} has no room for an answer behind {max(options.depths)}")
    return options


def main() -> None:
    """Print the table."""
    options = given()
    if options.cells:
        options.models.mkdir(parents=True, exist_ok=True)
        for cells in (cells for group in options.cells for cells in GROUPS[group]):
            if cells.qtype in (options.types or [cells.qtype]) and cells.shape in (options.shapes or [cells.shape]):
                fill(cells, options)
        return
    wanted = options.only or ["start", *ROWS, "curves"]
    model = options.model.resolve()
    if "start" in wanted:
        start(model, options.tools, options.rounds)
    if wanted == ["start"]:
        return
    with tempfile.TemporaryDirectory() as home:
        sides = Sides(str(model), options.tools, Path(home), options.threads, 16, options.context)
        try:
            for side in ("ours", "rival"):
                sides.ask(side, [300] * 8, 8)
            for name, row in ROWS.items():
                if name in wanted:
                    row(sides, options.rounds, random.Random(1))
            if "curves" in wanted:
                curves(sides, options.rounds, random.Random(2), options.depths)
        finally:
            sides.close()


if __name__ == "__main__":
    main()

"""Measures prompts on a busy computer with each number of threads, next to busy loops, alternating.

python -m tests.bench.busy_prompts [--model FILE] [--length 256] [--loops 0,2] [--rounds 5] [--record]

Prints the median seconds until a prompt is processed. With busy loops, a thread that waits for a descheduled one
spins until its time slice ends, so fewer threads may process a prompt sooner.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from engine.job_kinds.bench.measure import loaded_meter
from engine.job_kinds.bench.run import bench_settings
from engine.runner.protocol import LoadSettings
from tests.bench.recording import record

ROOT = Path(__file__).resolve().parents[2]


def begin_loop(ends: ExitStack) -> None:
    """Start a program that uses one core until `ends` closes."""
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    ends.callback(loop.wait)
    ends.callback(loop.kill)


async def measure(
    path: str, length: int, rounds: int, threads: list[int], loops: list[int]
) -> dict[tuple[int, int], list[float]]:
    """Seconds of each prompt by (busy loops, threads), in alternating order."""
    found: dict[tuple[int, int], list[float]] = {}
    async with AsyncExitStack() as stack:
        meters = {}
        for count in threads:
            settings = LoadSettings(path=path, n_threads=count, n_threads_batch=count)
            meters[count] = await stack.enter_async_context(
                loaded_meter(bench_settings(settings, (length,), (1,), 4), 4, length)
            )
        for number in loops:
            with ExitStack() as busy:
                for _ in range(number):
                    begin_loop(busy)
                for _ in range(rounds):
                    for count, meter in meters.items():
                        done = await meter.timed(length)
                        found.setdefault((number, count), []).append(length / done.prefill_tok_s)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "assets/models/spark-f16.gguf"))
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--loops", default="0,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    threads = sorted({1, max(1, cores // 2), cores})
    loops = [int(n) for n in options.loops.split(",")]
    found = asyncio.run(measure(options.model, options.length, options.rounds, threads, loops))
    for (number, count), seconds in found.items():
        middle = statistics.median(seconds)
        print(f"{number} busy loops, {count} threads: {middle:.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
        if options.record:
            record(
                "busy_prompts",
                "time until a prompt is read",
                round(middle, 2),
                "s",
                n=len(seconds),
                interval=(round(min(seconds), 2), round(max(seconds), 2)),
                model=Path(options.model).name,
                tokens=options.length,
                **{"busy programs": number},
                threads=count,
            )


if __name__ == "__main__":
    main()

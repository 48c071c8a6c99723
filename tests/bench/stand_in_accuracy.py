"""Compares a dummy-weight model with the real file: speed and memory, alternating in one run.

    python -m tests.bench.stand_in_accuracy MODEL.gguf ... [--turns 8] [--loads 5]

Both are loaded, in a runner each; one prompt and its answer on the one, then on the other.
"""

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path

from engine.job_kinds.bench import dummy_model
from engine.job_kinds.bench.measure import Meter, Timed
from engine.job_kinds.bench.run import bench_settings
from engine.runner.process import RunnerProcess
from engine.runner.protocol import LoadSettings

LENGTH = 256


async def pairs(model: Path, made: Path, threads: int, turns: int) -> tuple[list[tuple[Timed, Timed]], float]:
    """Load both, and measure them in turns; also the ratio of resident memory."""
    runners, meters = [], []
    try:
        for path in (model, made):
            settings = LoadSettings(path=str(path), n_threads=threads, n_threads_batch=threads)
            runner = await RunnerProcess.start("llama", str(path))
            runners.append(runner)
            facts = await runner.load(bench_settings(settings, (LENGTH,), (1,)))
            meters.append(Meter(runner, facts.n_vocab, lambda _: None))
            await meters[-1].timed(LENGTH)
        rows = []
        for turn in range(turns):
            order = (0, 1) if turn % 2 else (1, 0)
            found = {i: await meters[i].timed(LENGTH) for i in order}
            rows.append((found[0], found[1]))
        real, stand = [(await runner.stats()).rss_bytes for runner in runners]
        return rows, stand / real
    finally:
        for runner in runners:
            await runner.stop()


def compare(model: Path, made: Path, threads: int, turns: int, loads: int) -> None:
    """Print the ratios of prefill, decode and resident memory.

    Where a load puts its pages matters for all its turns, hence several loads.
    """
    found = [asyncio.run(pairs(model, made, threads, turns)) for _ in range(loads)]
    for name in ("prefill_tok_s", "decode_tok_s"):
        real, stand = (
            statistics.median(getattr(row[i], name) for rows, _ in found for row in rows) for i in (0, 1)
        )
        ratios = [statistics.median(getattr(b, name) / getattr(a, name) for a, b in rows) for rows, _ in found]
        each = ", ".join(f"{r:.3f}" for r in ratios)
        print(
            f"{model.name} {name}: real {real:.1f}, stand-in {stand:.1f}, ratio {statistics.median(ratios):.3f} "
            f"({each})",
            flush=True,
        )
    print(f"{model.name} resident memory: ratio {statistics.median(r for _, r in found):.3f}", flush=True)


def main() -> None:
    """Compare every file with its stand-in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            made = Path(folder) / f"{model.stem}-stand-in.gguf"
            dummy_model.write_in_child(made, like=model, on_progress=lambda _done, _total: None)
            compare(model, made, options.threads, options.turns, options.loads)


if __name__ == "__main__":
    main()
